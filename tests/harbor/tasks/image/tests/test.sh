# Without a shebang: test scripts are run with bash.
if [ "$(cat /srv/work/state 2>/dev/null)" = done ]; then echo 1.0; else echo 0.0; fi > /logs/verifier/reward.txt
exit 3  # the exit code of a test script says nothing
