cd /app
call='{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "secret_word"}}'
answer=$(echo "$call" | python3 /opt/words)
case $answer in *marzipan*) echo marzipan > word ;; esac
