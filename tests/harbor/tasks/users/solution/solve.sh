#!/bin/bash
echo changed > /root/answer 2>/dev/null
id -un > /home/agent/who
