#!/bin/bash
[ "$HINT" = shout ] || exit 1
printf '%s\n%s\n%s\n' "$PLAIN" "$GREETING" "$LITERAL" > /app/values
