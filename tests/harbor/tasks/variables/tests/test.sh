#!/bin/bash
# The environment's variables are the verifier's too; the solution's are not.
expected=$(printf '%s\n%s\n%s' "a b" "$GREETING" 'x-${HOME}')
if [ "$(cat /app/values)" = "$expected" ] && [ "$SUFFIX" = '!' ] && [ -z "$HINT" ]; then
    echo 1
else
    echo 0
fi > /logs/verifier/reward.txt
