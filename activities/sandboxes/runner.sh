# The detached runner: sh runner.sh DIR LIMIT_SEC GRACE_SEC USER CWD MARK cmd...
#
# Writes in DIR (root's, 0700), each by one write:
#   pid       "pid start runner_pid runner_start started_uptime limit_sec grace_sec mark"
#   out, err  the command's output, and MARK where it ended: services that it left may write on
#   deadline  made when the limit is reached
#   rc        "code why finished_uptime", why is one of exit, deadline, chdir, user; after `deadline`
#             it is written only when the sweep is done
# LIMIT_SEC 0 is none. Plain POSIX sh. Once the command runs only builtins are used: in a box whose
# pids are used up a fork fails, and a shell whose fork fails dies.

umask 077
dir=$1 limit=$2 grace=$3 user=$4 cwd=$5 mark=$6
shift 6
# Signals to our group are the command's; a handler, unlike "ignore", is not inherited by it.
trap : TERM HUP INT

# Sets $state, $parent and $start of process $1; false when it is gone. A name may hold anything, ") " too.
stat_of() {
    line='' part=''
    { while IFS= read -r part || [ -n "$part" ]; do line="$line$part"; done <"/proc/$1/stat"; } 2>/dev/null
    [ -n "$line" ] || return 1
    set -- ${line##*) }
    state=$1 parent=$2 start=${20}
}

# Sets $now to the uptime in hundredths of a second.
clock() {
    read -r now _ </proc/uptime
    now=$((${now%.*} * 100 + 1${now#*.} - 100))
}

snapshot() {
    base=' '
    for process in /proc/[0-9]*; do
        stat_of "${process#/proc/}" && base="$base${process#/proc/}:$start "
    done
}

# Stops all at once, kills what was not there before the command, lets the rest go on. Not who collects the
# output: a cat that is killed between its read and its write takes the command's last words with it.
sweep() {
    found=1
    while [ -n "$found" ]; do
        found=''
        kill -s STOP -- -1
        for process in /proc/[0-9]*; do
            process=${process#/proc/}
            case $process in 1 | "$me" | "$runner") continue ;; esac
            stat_of "$process" || continue
            case $state in Z | X) continue ;; esac
            case $base in *" $process:$start "*) continue ;; esac
            case " $collectors " in *" $process "* | *" $parent "*) continue ;; esac
            kill -s KILL "$process" && found=1
        done
    done
    kill -s CONT -- -1
} 2>/dev/null

# Waits for the sleeper $1, and on until the clock is at $2: agents run `pkill sleep`.
wait_until() {
    wait "$1"
    clock
    while [ "$now" -lt "$2" ] && [ -z "$ended" ]; do
        sleep $((($2 - now + 99) / 100)) &
        wait $!
        clock
    done
}

# Runs beside the command. USR1 says that the command ended by itself.
watch_limit() {
    trap '' TERM HUP INT
    ended='' limit_sleeper='' grace_sleeper=''
    trap 'kill -s KILL $limit_sleeper $grace_sleeper $! 2>/dev/null; exit' USR1
    read -r me _ </proc/self/stat
    clock
    end=$((now + limit * 100))
    sleep "$limit" &
    limit_sleeper=$!
    sleep $((limit + grace)) & # forked now: at the limit a fork may fail
    grace_sleeper=$!
    wait_until "$limit_sleeper" "$end"
    # The sleeper goes too: a signal between a look at $ended and `wait` would else be waited out.
    trap 'ended=1; kill -s KILL $grace_sleeper $! 2>/dev/null' USR1
    echo "$end" >"$dir/deadline"
    if read -r pid _ <"$dir/pid"; then
        kill -s TERM -- "-$pid" || kill -s TERM "$pid"
    fi 2>/dev/null
    wait_until "$grace_sleeper" $((end + grace * 100))
    sweep
}

# Sets $name, $uid, $gid and $home of a user given by name or number; false when there is none.
find_user() {
    name='' uid='' gid=0 home=/
    while IFS=: read -r n _ u g _ h _; do
        if [ "$n" = "$1" ] || [ "$u" = "$1" ]; then
            name=$n uid=$u gid=$g home=$h
            return 0
        fi
    done </etc/passwd
    case $1 in '' | *[!0-9]*) return 1 ;; esac
    uid=$1
}

# Sets $switch to what runs a command as $uid, the first that works here.
find_switch() {
    switch=''
    [ "$uid" = 0 ] && return 0
    groups=--clear-groups
    [ -n "$name" ] && groups=--init-groups
    if setpriv --reuid "$uid" --regid "$gid" $groups true; then
        switch="$(command -v setpriv) --reuid $uid --regid $gid $groups"
    elif chroot --userspec="$uid:$gid" / true; then
        switch="$(command -v chroot) --userspec=$uid:$gid --skip-chdir /"
    elif [ -n "$name" ] && su -m -s /bin/sh -c true -- "$name"; then
        # busybox's su takes the command's options for its own unless it is told where its own end.
        switch="$(command -v su) -m -s /bin/sh -c 'exec \"\$0\" \"\$@\"' -- $name"
    else
        return 1
    fi
} >/dev/null 2>&1

# The command writes to pipes, because a script that says `>/dev/stderr` would cut a file off. What comes
# is put into the files by a cat that is started again when it is killed, until all writers are gone.
collect() {
    exec 3<"$dir/$1.pipe" 5<&- 6<&- </dev/null
    trap '' TERM HUP INT
    while :; do
        cat <&3 >>"$dir/$1" 2>/dev/null
        code=$?
        [ "$code" -eq 0 ] && exit
        [ "$code" -lt 128 ] && exec cat <&3 >/dev/null # the disk is full; nobody is to wait for it
    done
}

finish() {
    read -r finished _ </proc/uptime
    echo "$1 $2 $finished" >"$dir/rc"
}

read -r runner _ </proc/self/stat
stat_of "$runner"
runner_start=$start
snapshot
read -r started _ </proc/uptime
cd -- "$cwd" 2>/dev/null || { finish 97 chdir; exit; }
find_user "$user" 2>/dev/null && find_switch || { finish 98 user; exit; }
session=$(command -v setsid)
input=/dev/null
[ -f "$dir/in" ] && input=$dir/in
mkfifo "$dir/out.pipe" "$dir/err.pipe"
exec 5<>"$dir/out.pipe" 6<>"$dir/err.pipe"
: >>"$dir/out" >>"$dir/err"
# Who opens /dev/stdin or /dev/stderr opens these anew.
if [ "$uid" != 0 ]; then
    chown "$uid" "$dir/out.pipe" "$dir/err.pipe"
    [ "$input" = /dev/null ] || chown "$uid" "$input"
fi
collect out &
collectors=$!
collect err &
collectors="$collectors $!"
if [ "$limit" -gt 0 ]; then
    watch_limit 5<&- 6<&- &
    watcher=$!
fi

# In the foreground: what a shell starts with `&` has INT and QUIT ignored for good.
(
    read -r pid _ </proc/self/stat
    stat_of "$pid"
    echo "$pid $start $runner $runner_start $started $limit $grace $mark" >"$dir/pid"
    HOME=$home
    export HOME
    . "$dir/env"
    : >"$dir/env"
    umask 022
    eval exec "$session" "$switch" '"$@"'
) <"$input" >"$dir/out.pipe" 2>"$dir/err.pipe" 5<&- 6<&-
code=$?

why=exit
if [ "$limit" -gt 0 ]; then
    kill -s USR1 "$watcher" 2>/dev/null
    while kill -s 0 "$watcher" 2>/dev/null; do wait "$watcher"; done
    [ -e "$dir/deadline" ] && why=deadline
fi
finish "$code" "$why"
printf '\000\001%s' "$mark" >&5
printf '\000\001%s' "$mark" >&6
