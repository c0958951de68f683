set -e
cd /app
grep -q '^0 coins$' ledger
echo '5 coins' > ledger
cp receipt-form receipt
