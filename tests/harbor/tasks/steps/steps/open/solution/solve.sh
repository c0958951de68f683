echo '0 coins' > /app/ledger
