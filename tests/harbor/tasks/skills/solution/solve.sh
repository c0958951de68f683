echo 'Yours, the harness' >> letter
