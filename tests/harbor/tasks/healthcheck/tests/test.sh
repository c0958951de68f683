#!/bin/bash
if [ "$(wc -l < /app/asked)" = 3 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
