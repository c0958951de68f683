#!/bin/bash
# The verifier is in another file, so that all of tests/ must be there.
. /tests/check.sh
reward_if test "$(tr -d '[:space:]' < /app/lines.txt)" = 4
