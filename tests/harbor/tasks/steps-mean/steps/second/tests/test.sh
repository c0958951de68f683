#!/bin/bash
# In a container of its own, where only what was collected is.
if [ "$(cat /logs/artifacts/second)" = agent ] && [ ! -e /app/first ]; then echo 1; else echo 0; fi \
    > /logs/verifier/reward.txt
