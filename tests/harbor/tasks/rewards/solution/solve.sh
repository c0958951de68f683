echo 'sort -n' > /app/sort.sh
