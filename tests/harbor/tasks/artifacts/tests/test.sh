#!/bin/bash
if [ -f /app/out/a.txt ] && [ -f /app/notes.txt ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
