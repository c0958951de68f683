#!/bin/bash
if [ "$(cat /app/word 2>/dev/null)" = marzipan ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
