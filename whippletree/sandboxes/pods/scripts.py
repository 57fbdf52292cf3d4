"""What runs in a pod: shell scripts for /bin/sh with the tools that `TOOLS` names; pure text.

A command does not hang on the connection that started it:

    { command; its code ─► code } ─► tee ─► cat (streamer) ─► this connection
                                      └──► out (bounded)
    when all output has ended:  code ─► end

`follow` comes in on another connection: it ends the streamer, which may be stuck on a dead connection, shows what `out` holds
beyond what the caller has, and ends with the code in `end`. The directory of a command is made by whoever comes first, so a
command that was given up before it began never begins. What the scripts say themselves goes to the error channel; a command's
errors go with its output.

Invariants (tests/sandboxes/test_sandbox_pod_scripts.py, on the shells that are here):
- arguments, variables and paths reach the command as the very bytes, and no text of theirs is ever read as shell;
- a command's outcome can be had again by `follow`, whatever became of its first connection, and once only is it started;
- a kill takes what carries the command's mark, and its descendants, in whichever session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whippletree.protocols import Limits

PLACE = "/.whippletree"  # a volume of the pod: one directory per command
MARK = "WHIPPLETREE_COMMAND"
INIT_MARK = "whippletree-init"
TOOLS = ("sh", "tar", "cat", "head", "tail", "tee", "tr", "grep", "env", "mkdir", "rm", "mv", "wc", "du", "id", "sleep")
FAILED, NEVER, NONE = 70, "never", "none"
KILLED = 137
_BLOCK = 512  # bytes that the shells count file sizes in

# The first process: it reaps orphans and ends when it is told to.
INIT = f": {INIT_MARK}; trap 'exit 0' TERM INT; while :; do sleep 1000 & wait; done"

# $0 bytes of script come over the input, so that no variable of a command stands in an address or a log of the cluster.
READER = 'eval "$(head -c "$0")"'

FOLLOW = """
d=$1 off=$2 n=0
if mkdir -m 700 "$d" 2>/dev/null; then echo never >&2; exit 70; fi
{ read -r p < "$d/streamer" && kill -9 "$p"; } 2>/dev/null
while :; do
  over=
  if [ -e "$d/end" ]; then over=1
  elif read -r p < "$d/pump" && kill -0 "$p"; then n=0
  else n=$((n + 1)); [ "$n" -gt 10 ] && over=1
  fi
  size=$(wc -c < "$d/out") || size=0
  if [ "$size" -gt "$off" ]; then
    tail -c +$((off + 1)) "$d/out" | head -c $((size - off))
    off=$size
  fi
  [ -z "$over" ] || break
  sleep 0.2 || sleep 1
done 2>/dev/null
read -r code 2>/dev/null < "$d/end" || exit 137
exit "$code"
"""

# $1: the command's directory, $2: its mark. Ends once nothing marked runs and the command has ended or never began.
KILL = """
d=$1 mark=$2 n=0
mkdir -m 700 "$d" 2>/dev/null && exit 0
while :; do
  found=$(grep -l -s -z -x -F -e "$mark" /proc/[0-9]*/environ)
  pids=' '
  [ -e "$d/code" ] || { read -r p < "$d/command" && kill -0 "$p" && pids=" $p "; } 2>/dev/null
  for path in $found; do path=${path#/proc/}; pids="$pids${path%/environ} "; done
  if [ "$pids" != ' ' ]; then
    grown=1
    while [ -n "$grown" ]; do
      grown=
      for line in $(grep -s '^PPid:' /proc/[0-9]*/status | tr -d '\\t '); do
        pid=${line#/proc/}; pid=${pid%%/*}
        case $pids in *" $pid "*) continue ;; esac
        case $pids in *" ${line##*:} "*) pids="$pids$pid "; grown=1 ;; esac
      done
    done
    for pid in $pids; do kill -9 "$pid"; done
  elif [ -e "$d/code" ] || [ -e "$d/end" ]; then exit 0
  elif read -r p < "$d/pump" && ! kill -0 "$p"; then exit 0
  fi 2>/dev/null
  n=$((n + 1)); [ "$n" -lt 200 ] || exit 1
  sleep 0.05 || sleep 1
done 2>/dev/null
"""

# Everything but the first process and this shell; only in a container with processes of its own. Ends when they are gone.
KILL_ALL = f"""
grep -q -z -F {INIT_MARK} /proc/1/cmdline || {{ echo "its first process is not ours" >&2; exit 70; }}
there=$(echo /proc/[0-9]*)
kill -9 -1
n=0
for place in $there; do
  case $place in /proc/1 | /proc/$$) continue ;; esac
  while read -r state < "$place/stat"; do
    case ${{state##*) }} in Z* | X*) break ;; esac
    n=$((n + 1)); [ "$n" -lt 300 ] || exit 1
    sleep 0.02 || sleep 1
  done
done 2>/dev/null
exit 0
"""

USAGE = f"""
while read -r name value; do [ "$name" = usage_usec ] && echo "cpu_usec $value"; done < /sys/fs/cgroup/cpu.stat
for place in /sys/fs/cgroup/cpuacct /sys/fs/cgroup/cpu,cpuacct; do
  read -r value < $place/cpuacct.usage && echo "cpu_nsec $value"
done
for place in /sys/fs/cgroup/memory.peak /sys/fs/cgroup/memory/memory.max_usage_in_bytes; do
  read -r value < $place && echo "memory $value"
done
echo "processes $(grep -l -s -z -e ^{MARK}= /proc/[0-9]*/environ | wc -l)"
for place in /proc/[0-9]*/stat; do read -r value < $place && echo "stat $value"; done
for place; do [ -d "$place" ] && du -skx "$place" | while read -r value _; do echo "disk_kb $value"; done; done
exit 0
"""

_WALK = """
walk() { # no component of $1 is a symbolic link
  at= IFS=/
  for part in $1; do
    [ -n "$part" ] || continue
    at=$at/$part
    [ ! -L "$at" ] || { echo "$at: a symbolic link is not followed" >&2; exit 70; }
  done
  unset IFS
}
set -f
"""

# $1: path, $2: most bytes.
READ = (
    _WALK
    + """
walk "$1"
[ -e "$1" ] || { echo none >&2; exit 70; }
[ -f "$1" ] || { echo "$1: not a regular file" >&2; exit 70; }
exec head -c "$2" "$1"
"""
)

# $1: directory, $2: what in it.
GET = (
    _WALK
    + """
walk "$1/$2"
[ -e "$1/$2" ] || { echo "$1/$2: No such file or directory" >&2; exit 70; }
[ -f "$1/$2" ] || [ -d "$1/$2" ] || { echo "$1/$2: neither a regular file nor a directory" >&2; exit 70; }
cd "$1" || exit 70
exec tar -c -f - -- "$2"
"""
)

# $1: how many bytes come. Names in the archive are below /.
PUT = """cd / && umask 022 && head -c "$1" | tar -x -m -o -f -"""

# The arguments are directories. Everything stands still meanwhile.
SAVE = f"""
grep -q -z -F {INIT_MARK} /proc/1/cmdline || {{ echo "its first process is not ours" >&2; exit 70; }}
kill -STOP -1
trap '' PIPE
cd / && tar -c --numeric-owner -f - "$@"
code=$?
kill -CONT -1
exit "$code"
"""
GO_ON = "kill -CONT -1"

# $1: how many bytes come.
RESTORE = """cd / && head -c "$1" | tar -x -p --numeric-owner -f -"""


def quote(word: bytes) -> bytes:
    """A word as the shell reads it back."""
    return b"'" + word.replace(b"'", b"'\\''") + b"'"


def probe(directories: Sequence[str]) -> bytes:
    """Looks for the tools, makes the directories; prints user, name and home on lines of their own."""
    return b"""
missing=
for tool in %s; do command -v "$tool" >/dev/null || missing="$missing $tool"; done
printf 'a\\0b' | grep -q -z -x -F b 2>/dev/null || missing="$missing grep-with-z"
[ -z "$missing" ] || { echo "its image lacks:$missing" >&2; exit 70; }
[ -d %s ] && [ -w %s ] || { echo "the volume at %s is missing or cannot be written" >&2; exit 70; }
umask 022
: "${HOME:=/}"
mkdir -p -- %s "$HOME" 2>/dev/null
for place in %s; do [ -d "$place" ] || { echo "$place cannot be made" >&2; exit 70; }; done
id -u; id -un 2>/dev/null || id -u; echo "$HOME"
""" % (
        b" ".join(tool.encode() for tool in TOOLS),
        PLACE.encode(),
        PLACE.encode(),
        PLACE.encode(),
        (names := b" ".join(quote(name.encode()) for name in directories)),
        names,
    )


def directory(token: str) -> str:
    """Where a command keeps its state."""
    return f"{PLACE}/{token}"


def command(
    token: str,
    argv: Sequence[bytes],
    *,
    environment: Mapping[str, str],
    cwd: str,
    user: str,
    own: tuple[int, str],
    limits: Limits,
    keep: int,
    done: Sequence[str] = (),
) -> bytes:
    """Runs a command as that user ("": the container's `own`, by number and name), keeps `keep` bytes of its output, and
    forgets the commands `done`."""
    place = quote(directory(token).encode())
    forget = b"".join(b" " + quote(directory(other).encode()) for other in done)
    start, run = _as_user(user, own)
    where = quote(cwd.encode())
    return b"""
umask 022
rm -rf --%s
mkdir -m 700 %s 2>/dev/null || { echo "it was given up" >&2; exit 70; }
d=%s
%s
{
  (
    sh -c 'echo $PPID' > "$d/command"
    cd %s 2>/dev/null || { echo %s": No such file or directory"; exit 126; }
    %s
    %s
    %s
  ) 2>&1
  echo $? > "$d/code"
} < /dev/null 2>/dev/null | (
  trap '' XFSZ PIPE HUP
  sh -c 'echo $PPID' > "$d/pump"
  ( ulimit -f %d; exec tee "$d/out" 2>/dev/null )
  cat > /dev/null
  mv "$d/code" "$d/end"
) 2>/dev/null | sh -c 'echo $$ > "$0/streamer"; exec cat' "$d"
read -r code 2>/dev/null < "$d/end" || exit 137
exit "$code"
""" % (
        forget,
        place,
        place,
        start,
        where,
        where,
        _limits(limits),
        _is_there(argv[0], environment.get("PATH")),
        _exec(token, argv, environment, run),
        keep // _BLOCK + 2,
    )


def _limits(limits: Limits) -> bytes:
    lines = ["ulimit -c 0"]
    if limits.open_files:
        lines.append(f"ulimit -n {limits.open_files}")
    if limits.file_mb:
        lines.append(f"ulimit -f {limits.file_mb << 20 >> 9}")
    return "; ".join(f"{line} 2>/dev/null" for line in lines).encode()


def _is_there(program: bytes, path: str | None) -> bytes:
    name = quote(program)
    way = b"" if path is None else b"PATH=" + quote(path.encode()) + b"; "
    return b"(%scommand -v -- %s) >/dev/null 2>&1 || { echo %s': command not found'; exit 127; }" % (way, name, name)


def _exec(token: str, argv: Sequence[bytes], environment: Mapping[str, str], run: bytes) -> bytes:
    """The command under env, which takes any name; a program whose name looks like a variable goes through sh."""
    words = [quote(f"{name}={value}".encode()) for name, value in environment.items()]
    if b"=" in argv[0]:
        words += [b"sh", b"-c", quote(b'exec "$0" "$@"')]
    words += [quote(word) for word in argv]
    mark = quote(f"{MARK}={token}".encode())
    return run % (b"env " + mark + b' ${home:+HOME="$home"} ${name:+USER="$name"} ' + b" ".join(words))


def _as_user(user: str, own: tuple[int, str]) -> tuple[bytes, bytes]:
    """(what looks the user up, what becomes it before a command)."""
    if user in ("", own[1], str(own[0])):
        return b"home= name=", b"exec %s"
    find = b"""
want=%s uid= gid= name= home=
while IFS=: read -r n _ i g _ h _; do
  if [ "$n" = "$want" ] || [ "$i" = "$want" ]; then name=$n uid=$i gid=$g home=$h; fi
  [ "$n" != "$want" ] || break
done < /etc/passwd
if [ -z "$uid" ]; then
  case $want in *[!0-9]*) rm -rf -- "$d"; echo "it has no user $want" >&2; exit 70 ;; esac
  uid=$want gid=$want name=$want
fi
[ -d "$home" ] || home=/
groups=$gid
while IFS=: read -r _ _ g m; do case ",$m," in *",$name,"*) groups=$groups,$g ;; esac; done < /etc/group
if [ "$(id -u)" != 0 ]; then
  rm -rf -- "$d"; echo "its container is not root's, and can run no command as $want" >&2; exit 70
elif setpriv --reuid "$uid" true 2>/dev/null; then become=setpriv
elif chroot --userspec="$uid:$gid" / true 2>/dev/null; then become=chroot
else rm -rf -- "$d"; echo "its image has neither setpriv nor chroot --userspec: no command can run as $want" >&2; exit 70
fi
become() {
  if [ "$become" = setpriv ]; then exec setpriv --reuid "$uid" --regid "$gid" --groups "$groups" --no-new-privs "$@"
  else exec chroot --userspec="$uid:$gid" --groups="$groups" --skip-chdir / "$@"
  fi
}
""" % quote(user.encode())
    return find, b"become %s"


def prepare(target: str, directories: Sequence[str], files: Sequence[str]) -> bytes:
    """Makes the directories for a copy, unless a file would be replaced or a symbolic link followed."""
    lines = [_WALK.encode(), b"walk " + quote(target.encode())]
    for path in directories:
        name = quote(path.encode("utf-8", "surrogateescape"))
        lines.append(
            b"if [ -L %s ] || { [ -e %s ] && [ ! -d %s ]; }; then echo %s': File exists' >&2; exit 70; fi"
            % (name, name, name, name)
        )
    for path in files:
        name = quote(path.encode("utf-8", "surrogateescape"))
        lines.append(b"if [ -e %s ] || [ -L %s ]; then echo %s': File exists' >&2; exit 70; fi" % (name, name, name))
    lines.append(b"umask 022")
    lines += [b"mkdir -p -- %s || exit 70" % quote(path.encode("utf-8", "surrogateescape")) for path in directories]
    return b"\n".join(lines) + b"\n"
