#!/bin/bash
if [ -e /tmp/here ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
