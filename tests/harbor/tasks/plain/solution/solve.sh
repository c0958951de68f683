#!/bin/bash
wc -l < /app/poem.txt > /app/lines.txt
