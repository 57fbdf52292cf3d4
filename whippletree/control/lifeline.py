"""What ties a process to its parent's life. Standard library only: this file also runs as a script, with -I -S, in a few ms.

Three uses:
- `exit_with_parent(pid)`: a Python command of ours calls it first thing and dies with that parent, even on kill -9;
- `lifeline.py exec PARENT argv...`: sets the same tie, then becomes `argv` (for commands that are not ours);
- `lifeline.py guard`: reads "+SESSION" and "-SESSION" lines on its standard input; when that ends, because its supervisor
  ended in whatever way, it kills every process of the sessions still listed.

Invariants (tests/control/test_lifeline.py):
- a tied process is gone soon after its parent is killed with SIGKILL, also when the parent died before the tie was made;
- the guard kills grandchildren in process groups of their own, and nothing outside the listed sessions.

The kernel sends the parent-death signal when the *thread* that forked ends, so fork from a thread that outlives the child.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

TYPE_CHECKING = False  # typing would double the start-up time of the wrapper
if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG = 1
SWEEP_SECONDS = 5.0  # how long kill_session keeps looking for newly forked members


def exit_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; leave at once if `parent` is already gone.

    On systems without prctl (not Linux) only the second half holds.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def exec_prefix(parent: int) -> list[str]:
    """What to put before an argv so that the command dies with process `parent`, which must be the one that forks it."""
    return [sys.executable, "-I", "-S", __file__, "exec", str(parent)]


def session_members(session: int) -> list[int]:
    """Process ids in a session, zombies left out."""
    found = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():  # noqa: PTH208 (pathlib would double the start-up time)
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if int(fields[3]) == session and fields[0] not in (b"Z", b"X"):
            found.append(int(name))
    return found


def kill_session(session: int) -> bool:
    """SIGKILL every process of a session until none is left. False if some survive SWEEP_SECONDS (uninterruptible)."""
    _kill_quietly(os.killpg, session)
    limit = time.monotonic() + SWEEP_SECONDS
    while members := session_members(session):
        for pid in members:
            _kill_quietly(os.kill, pid)
        if time.monotonic() > limit:
            return False
        time.sleep(0.005)
    return True


def _kill_quietly(send: Callable[[int, int], None], number: int) -> None:
    try:
        send(number, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # ended already; some systems answer "not permitted" for a group of zombies


def guard() -> None:
    """Read session numbers on standard input; at its end kill the sessions that were not taken back."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        change = sessions.add if line[0] == "+" else sessions.discard
        change(int(line[1:]))
    for session in sessions:
        kill_session(session)


def _main(argv: list[str]) -> None:
    if argv[:1] == ["guard"]:
        guard()
        return
    exit_with_parent(int(argv[1]))
    try:
        os.execvp(argv[2], argv[2:])
    except OSError as error:
        sys.stderr.write(f"cannot start {argv[2]}: {error.strerror}\n")
        os._exit(127)


if __name__ == "__main__":
    _main(sys.argv[1:])
