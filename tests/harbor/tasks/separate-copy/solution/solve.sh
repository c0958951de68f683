echo finished >> /app/log
