"""Shell texts that run in a sandbox. Only a POSIX shell and coreutils, or busybox, are needed there.

A command writes into pipes, which slow it down when it writes faster than it is read; files would fill the disk. What
comes out of the pipes is printed as records: `<BASE64>`, `<#BYTES AFTER THE BEGINNING>`, `<=EXIT CODE>`, `<!REASON>`.
"""

# $1: o or e; $2: bytes of the beginning to pass on; $3: bytes of the end to pass on after a longer output.
PUMP = r"""
pump() {
  g_left=$2
  while [ "$g_left" -gt 0 ]; do
    g_n=$g_left; [ "$g_n" -gt 49152 ] && g_n=49152
    g_b=$(dd bs="$g_n" count=1 2>/dev/null | base64 -w0)
    [ -n "$g_b" ] || return 0
    printf '<%s>\n' "$g_b"
    g_n=$((${#g_b} / 4 * 3))
    case $g_b in *==) g_n=$((g_n - 2)) ;; *=) g_n=$((g_n - 1)) ;; esac
    g_left=$((g_left - g_n))
  done
  mkfifo "$g_d/n$1"
  wc -c <"$g_d/n$1" >"$g_d/c$1" &
  tee "$g_d/n$1" | tail -c "$3" >"$g_d/t$1"
  wait
  printf '<#%d>\n<%s>\n' "$(cat "$g_d/c$1")" "$(base64 -w0 <"$g_d/t$1")"
}
"""

# The mark in the environment of the command, and not of this script, is what `END` finds its processes by.
RUN = r"""
unset GYM_SCRIPT
fail() { printf '<!%s>\n' "$1"; exit 1; }
kills() {
  g_kills=
  for g_f in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    [ -r "$g_f" ] || continue
    while read -r g_key g_value; do [ "$g_key" != oom_kill ] || g_kills=$g_value; done <"$g_f"
  done
}
kills
g_before=$g_kills
mkdir -m 700 "$g_d" || fail 'it has no /tmp that can be written, or the command was ended before it began'
mkfifo "$g_d/o" "$g_d/e" "$g_d/O" "$g_d/E" || fail 'it has no mkfifo'
exec 3<>"$g_d/o" 4<>"$g_d/e" 5>"$g_d/o" 6>"$g_d/e" 7<"$g_d/o" 8<"$g_d/e" 3>&- 4>&-
cat <"$g_d/o" >"$g_d/O" 5>&- 6>&- 7>&- 8>&- &
g_co=$!
cat <"$g_d/e" >"$g_d/E" 5>&- 6>&- 7>&- 8>&- &
g_ce=$!
(exec 5>&- 6>&- 7>&- 8>&-; pump o "$g_head" "$g_tail"; : >"$g_d/do") <"$g_d/O" &
g_po=$!
(exec 5>&- 6>&- 7>&- 8>&-; pump e "$g_head" "$g_tail"; : >"$g_d/de") <"$g_d/E" >&2 &
g_pe=$!
[ -n "$g_input" ] && { g_in=$g_d/i; printf %s "$g_input" | base64 -d >"$g_in"; }
g_own=$(command -v setsid)
# A limit that is refused was tighter before.
set -- ${g_own:+"$g_own"} /bin/sh -c 'ulimit -f "$1" 2>/dev/null; shift; exec "$@"' sh "$g_blocks" "$@"
(
  exec <"$g_in" >&5 2>&6 5>&- 6>&- 7>&- 8>&-
  cd -- "$g_cwd" || exit 126
  export GYM_SANDBOX="$g_mark"
  @EXPORTS@
  exec "$@"
) &
g_pid=$!
echo "$g_pid" >"$g_d/pid"
exec 5>&- 6>&-
wait "$g_pid" 2>/dev/null
g_rc=$?
# What stays in the background may hold the pipes. It goes on, and from now on nobody listens.
g_n=0
until [ -e "$g_d/do" ] && [ -e "$g_d/de" ]; do
  g_n=$((g_n + 1))
  [ "$g_n" -le 150 ] || break
  sleep 0.005 2>/dev/null || { sleep 1; g_n=150; }
done
if [ "$g_n" -gt 150 ]; then
  kill "$g_co" "$g_ce" 2>/dev/null
  $g_own cat <&7 >/dev/null 2>&1 8>&- &
  $g_own cat <&8 >/dev/null 2>&1 7>&- &
fi
wait "$g_po" "$g_pe"
rm -rf "$g_d"
kills
g_oom=; [ "$g_kills" = "$g_before" ] || g_oom=+
printf '<=>\n' >&2
printf '<=%d%s>\n' "$g_rc" "$g_oom"
"""

# Finds processes by mark, session and descent, kills them, and says so once none is left.
END = r"""
mkdir -m 700 "$g_d" 2>/dev/null && { echo '<=0>'; exit 0; }
g_n=0
until [ -e "$g_d/pid" ] || [ ! -d "$g_d" ] || [ "$g_n" -gt 30 ]; do g_n=$((g_n + 1)); sleep 0.1; done
g_first=$(cat "$g_d/pid" 2>/dev/null)
found() {
  g_ours=" $(grep -lsF "GYM_SANDBOX=$g_mark" /proc/[0-9]*/environ | tr -c '0-9\n' ' ' | tr '\n' ' ') "
  g_more=1
  while [ "$g_more" = 1 ]; do
    g_more=0
    for g_f in /proc/[0-9]*/stat; do
      { read -r g_line <"$g_f"; } 2>/dev/null || continue
      g_p=${g_line%% *}
      set -- ${g_line##*) }
      case $g_ours in *" $g_p "*) continue ;; esac
      [ "$1" = Z ] && continue
      case $g_ours in *" $2 "*) g_ours="$g_ours$g_p "; g_more=1; continue ;; esac
      [ -n "$g_first" ] && [ "$4" = "$g_first" ] && { g_ours="$g_ours$g_p "; g_more=1; }
    done
  done
  g_living=
  for g_p in $g_ours; do
    { read -r g_line <"/proc/$g_p/stat"; } 2>/dev/null || continue
    set -- ${g_line##*) }
    [ "$1" = Z ] || g_living="$g_living $g_p"
  done
  [ -n "$g_living" ]
}
g_n=0
while found; do
  [ "$g_n" -gt 100 ] && { echo "<!processes$g_living of a command stay>"; exit 1; }
  g_n=$((g_n + 1))
  kill -KILL $g_living 2>/dev/null
  sleep 0.05
done
echo '<=0>'
"""

# Prints all processes as PID:START.
PROCESSES = r"""
for g_f in /proc/[0-9]*/stat; do
  { read -r g_line <"$g_f"; } 2>/dev/null || continue
  g_p=${g_line%% *}
  set -- ${g_line##*) }
  [ "$g_p" = $$ ] || [ "$1" = Z ] || printf '%s:%s ' "$g_p" "${20}"
done
"""

# Kills all processes but this one and those in $g_keep.
CLEAR = r"""
others() {
  g_living=
  for g_f in /proc/[0-9]*/stat; do
    { read -r g_line <"$g_f"; } 2>/dev/null || continue
    g_p=${g_line%% *}
    set -- ${g_line##*) }
    [ "$g_p" = $$ ] || [ "$1" = Z ] && continue
    case " $g_keep " in *" $g_p:${20} "*) ;; *) g_living="$g_living $g_p" ;; esac
  done
  [ -n "$g_living" ]
}
g_n=0
while others; do
  [ "$g_n" -gt 100 ] && { echo "<!processes$g_living stay>"; exit 1; }
  g_n=$((g_n + 1))
  kill -KILL $g_living 2>/dev/null
  sleep 0.05
done
echo '<=0>'
"""
