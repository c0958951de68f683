#!/bin/bash
# Ends before it writes a reward, as one does whose tools cannot be installed.
echo "installing the test runner"
no-such-program install || exit 0
echo 1 > /logs/verifier/reward.txt
