#!/bin/bash
# reward.json wins over reward.txt, which would say 0.
echo 0 > /logs/verifier/reward.txt
correct=0 short=0
[ "$(printf '10\n9\n1\n' | bash /app/sort.sh 2>/dev/null | tr '\n' ' ')" = "1 9 10 " ] && correct=1
[ -f /app/sort.sh ] && [ "$(wc -l < /app/sort.sh)" -le 3 ] && short=1
echo "{\"correct\": $correct, \"short\": $short}" > /logs/verifier/reward.json
