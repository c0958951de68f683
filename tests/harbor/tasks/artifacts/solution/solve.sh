mkdir -p /app/out /app/cache /logs/artifacts
echo a > /app/out/a.txt
echo notes > /app/notes.txt
echo keep > /app/cache/keep.txt
echo drop > /app/cache/drop.bin
echo extra > /logs/artifacts/extra.txt
