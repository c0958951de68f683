#!/bin/bash
if [ -s /home/agent/pid ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
