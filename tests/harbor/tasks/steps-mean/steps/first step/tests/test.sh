#!/bin/bash
if [ "$(cat /app/first)" = root ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
