#!/bin/bash
if [ "$(tail -n 1 /srv/project/letter)" = "Yours, the harness" ]; then echo 1; else echo 0; fi \
    > /logs/verifier/reward.txt
