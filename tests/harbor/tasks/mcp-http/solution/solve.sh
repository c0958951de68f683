cd /app
call='{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "secret_word"}}'
python3 - "$call" <<'END'
import sys, urllib.request
reply = urllib.request.urlopen("http://127.0.0.1:8765/mcp", sys.argv[1].encode()).read().decode()
open("/app/word", "w").write("marzipan" if "marzipan" in reply else reply)
END
