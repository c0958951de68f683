# Shared by the tests of all steps. $UNIT is set for the task, $GOAL for each step.
ledger_says() {
    [ "$(cat /app/ledger 2>/dev/null)" = "$1 $UNIT" ]
}
