# Runs one program in a sandbox and leaves a receipt, whoever is watching. Needs a POSIX shell and coreutils; uses
# `setsid`, `grep` and python3 where they are.
#
#   supervise.sh start  DIRECTORY detach|stay FOLLOW DEADLINE GRACE LEFT CWD PROGRAM ARGUMENT...
#   supervise.sh run    DIRECTORY DEADLINE GRACE LEFT CWD PROGRAM ARGUMENT... (what `start` starts)
#   supervise.sh follow DIRECTORY OFFSET|none       (standard output from there on, until the end)
#   supervise.sh stop   DIRECTORY
#   supervise.sh reap   DIRECTORY LEFT SUPERVISOR   (kills what is left, SUPERVISOR and its children too, and prints the
#                                                    receipt; exit code 0: nothing is left)
#
# LEFT says what happens to services that the program has left in sessions of their own: `end` or `keep` them.
# The directory holds: pid, control (a pipe; a line in it asks for the end), stdin, stdout, stderr, receipt.json.

action=$1 dir=$2
shift 2
token=GYM_LAUNCH=${dir##*/}
root=$$ helpers='' left=end program='' session=none seen=''

# Sets `tree` to the processes of the program: what descends from the supervisor ($root), but for its helpers, and what
# carries the token. As a subreaper, the supervisor also inherits orphans that have wiped their environment.
# Where services are kept, it is only what descends from the program or is in its session; a service has left both.
find_tree() {
    pairs='' tree='' from=$root
    [ "$left" = end ] || from=none
    for file in /proc/[0-9]*/stat; do
        # The name of a process may have line breaks, and brackets.
        line=''
        { while IFS= read -r part; do line="$line$part "; done <"$file"; } 2>/dev/null
        [ "$line" ] || continue
        pid=${file#/proc/} pid=${pid%/stat} line=${line##*) }
        case $line in Z*) continue ;; esac
        line=${line#* }
        pairs="$pairs $pid:${line%% *}"
        line=${line#* * }
        case "$pid ${line%% *}" in
            "$root "*) ;;
            *" $session") tree="$tree $pid" ;;
            *) case " $program $seen " in *" $pid "*) tree="$tree $pid" ;; esac ;;
        esac
    done
    grown=1
    while [ "$grown" ]; do
        grown=''
        for pair in $pairs; do
            pid=${pair%:*}
            case " $helpers $tree " in *" $pid "*) continue ;; esac
            case " $from $tree " in *" ${pair#*:} "*) tree="$tree $pid" grown=1 ;; esac
        done
    done
    [ "$left" = end ] || return
    for file in $(marked); do
        pid=${file#/proc/} pid=${pid%/environ}
        case " $tree " in *" $pid "*) ;; *) tree="$tree $pid" ;; esac
    done
}

marked() {
    # Others, such as busybox, look no further than the first variable.
    case $(grep -V 2>/dev/null) in
        *GNU*)
            grep -lF -e "$token" /proc/[0-9]*/environ 2>/dev/null
            return
            ;;
    esac
    for file in /proc/[0-9]*/environ; do
        case $(cat "$file" 2>/dev/null) in *"$token"*) echo "$file" ;; esac
    done 2>/dev/null
}

nap() {
    sleep 0.05 2>/dev/null || sleep 1
}

# Sends KILL until nothing is left; sets `confirmed`.
kill_tree() {
    confirmed=true rounds=0
    find_tree
    while [ "$tree" ]; do
        kill -KILL $tree 2>/dev/null
        [ "$rounds" -lt 100 ] || { confirmed=false; return; }
        rounds=$((rounds + 1))
        nap
        find_tree
    done
}

# Sends TERM and waits for the grace time, or less.
ask_tree() {
    find_tree
    seen=$tree
    kill -TERM $tree 2>/dev/null
    until=$(($(date +%s) + grace))
    while find_tree && [ "$tree" ] && [ "$(date +%s)" -lt "$until" ]; do nap; done
}

receipt() {
    printf '{"return_code": %s, "timed_out": %s, "stopped": %s, "cleanup_confirmed": %s, "started_at": %s, "ended_at": %s}\n' \
        "$code" "$timed_out" "$stopped" "$confirmed" "$started" "$(date +%s)" >"$dir/receipt.part"
    mv -f "$dir/receipt.part" "$dir/receipt.json"
}

run() {
    deadline=$1 grace=$2 left=$3 cwd=$4
    shift 4
    started=$(date +%s) asked='' timed_out=false stopped=false confirmed=true
    trap 'asked=${asked:-deadline}' USR1
    trap 'asked=${asked:-stop}' USR2
    trap '' HUP
    echo $$ >"$dir/pid.part" && mv "$dir/pid.part" "$dir/pid"
    cd -- "$cwd" 2>"$dir/stderr" || { code=126; receipt; exit; }
    # They repeat themselves, since a signal just before `wait` would go unnoticed.
    ( read -r word <"$dir/control"; while kill -USR2 $$; do sleep 1; done ) 2>/dev/null &
    helpers=$!
    ( trap 'kill "$nap"; exit' TERM; sleep "$deadline" & nap=$!; wait "$nap"; while kill -USR1 $$; do sleep 1; done ) 2>/dev/null &
    helpers="$helpers $!"
    # What a shell starts in the background ignores these signals, and so would all that the program starts.
    defaults=
    ! env --default-signal=INT true 2>/dev/null || defaults='env --default-signal=INT,QUIT,HUP'
    export "$token"
    $(command -v setsid) $defaults "$@" <"$dir/stdin" >"$dir/stdout" 2>"$dir/stderr" &
    program=$!
    [ "$left" = end ] || session=$program
    unset GYM_LAUNCH
    while [ -z "$asked" ]; do
        wait "$program"
        code=$?
        [ "$asked" ] || break
    done
    if [ "$asked" ] && kill -0 "$program" 2>/dev/null; then
        case $asked in deadline) timed_out=true ;; *) stopped=true ;; esac
        kill $helpers 2>/dev/null
        ask_tree
        kill -KILL "$program" 2>/dev/null
        wait "$program"
        code=$?
    fi
    kill_tree
    kill $helpers 2>/dev/null
    receipt
}

follow() {
    file=$dir/stdout offset=$1 rounds=0
    [ "$offset" != none ] || file=/dev/null offset=0
    while [ ! -s "$dir/pid" ] || [ ! -e "$file" ]; do
        [ ! -e "$dir/receipt.json" ] || exit 0
        [ "$rounds" -lt 400 ] || exit 1
        rounds=$((rounds + 1))
        nap
    done
    read -r pid <"$dir/pid"
    if tail --pid=1 -c 0 /dev/null 2>/dev/null; then
        exec tail -c "+$((offset + 1))" -f -s 0.1 --pid="$pid" "$file"
    fi
    while :; do
        last=''
        [ -d "/proc/$pid" ] && [ ! -e "$dir/receipt.json" ] || last=1
        size=$(wc -c <"$file")
        if [ "$size" -gt "$offset" ]; then
            tail -c "+$((offset + 1))" "$file" | head -c "$((size - offset))"
            offset=$size
        fi
        [ -z "$last" ] || exit 0
        nap
    done
}

case $action in
start)
    mode=$1 offset=$2
    shift 2
    subreaper='
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
finally:
    os.execv("/bin/sh", ["sh", *sys.argv[1:]])
'
    # Its own name is read again, since what runs is a file in a directory that only this user can enter.
    if [ "$(python3 -I -S -c 'print(1)' 2>/dev/null)" = 1 ]; then
        set -- python3 -I -S -c "$subreaper" "$dir/supervise" run "$dir" "$@"
    else
        set -- /bin/sh "$dir/supervise" run "$dir" "$@"
    fi
    $(command -v setsid) "$@" </dev/null >/dev/null 2>&1 &
    case $mode in
        detach) echo $! ;;
        *) follow "$offset" & wait ;;
    esac
    ;;
run) run "$@" ;;
follow) follow "$@" ;;
stop) [ ! -p "$dir/control" ] || echo stop >"$dir/control" ;;
reap)
    confirmed=true
    if [ "$1" = end ] || [ ! -e "$dir/receipt.json" ]; then
        root=none session=$2
        # The words of a command line are joined here: the shell drops what is between them.
        case $(cat "/proc/$2/cmdline" 2>/dev/null) in
            *"$dir/superviserun$dir"*) root=$2 ;;
        esac
        kill_tree
        [ "$root" = none ] || kill -KILL "$root" 2>/dev/null
    fi
    [ ! -f "$dir/receipt.json" ] || cat "$dir/receipt.json"
    [ "$confirmed" = true ]
    ;;
esac
