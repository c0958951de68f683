#!/bin/sh
# First process of a sandbox: the daemon, and beside it whatever the sandbox was asked to run.
/opt/opensandbox/execd &
"$@" &
wait "$!"
