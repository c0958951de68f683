cp /var/asked /app/asked
