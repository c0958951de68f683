#!/bin/bash
# In an image of its own, which the agent has never seen: the answer came as an artifact.
if [ "$(cat /bundled)" = bundled ] && [ "$PWD" = /check ] && [ "$(cat /app/answer.txt)" = "$EXPECTED" ]; then
    echo 1
else
    echo 0
fi > /logs/verifier/reward.txt
