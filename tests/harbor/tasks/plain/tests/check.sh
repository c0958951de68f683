reward_if() {
    if "$@"; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
}
