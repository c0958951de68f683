#!/bin/bash
# In the place of the task's test.sh; lib.sh is still the task's.
. /tests/lib.sh
reward=0 tidy=0
ledger_says "$GOAL" && reward=1
cmp -s /app/receipt /app/receipt-form && tidy=1
echo "{\"reward\": $reward, \"tidy\": $tidy}" > /logs/verifier/reward.json
