echo 'closed coins' > /app/ledger
