#!/bin/bash
# One that holds the script's output open, and one in a session of its own.
sleep 600 &
echo $! > /home/agent/pid
setsid sh -c 'while :; do sleep 1; done' &
