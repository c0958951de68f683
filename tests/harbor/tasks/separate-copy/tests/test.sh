#!/bin/bash
# In a fresh container of the task's image, without a network: only what was collected has come along.
fresh=$(cat /app/log)
networks=$(ls /sys/class/net | grep -cv '^lo$')
if [ "$fresh" = started ] && [ "$networks" = 0 ] && [ "$(cat /var/state/last)" = finished ] \
    && [ ! -e /var/state/x.tmp ]; then
    echo 1
else
    echo 0
fi > /logs/verifier/reward.txt
