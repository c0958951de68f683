#!/bin/bash
# Only root reads /root/answer; the agent's file belongs to the agent.
if [ "$(cat /root/answer)" = secret ] \
    && [ "$(cat /home/agent/who)" = agent ] \
    && [ "$(stat -c %U /home/agent/who)" = agent ]; then
    echo 1
else
    echo 0
fi > /logs/verifier/reward.txt
