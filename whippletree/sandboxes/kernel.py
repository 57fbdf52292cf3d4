"""The few Linux calls that Python 3.11 lacks, by ctypes; used in small single-threaded helper processes only.

Errors are OSError with the call's name. Nothing here changes the calling process unless its name says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_REC = 0x4000
MS_SLAVE = 0x80000
_MNT_DETACH = 2

NAMESPACES = {
    "user": CLONE_NEWUSER,
    "mnt": CLONE_NEWNS,
    "pid": CLONE_NEWPID,
    "net": CLONE_NEWNET,
    "ipc": CLONE_NEWIPC,
    "uts": CLONE_NEWUTS,
    "cgroup": CLONE_NEWCGROUP,
}

# chown, dac_override, fowner, kill, setgid, setuid: what root of a sandbox may do, to its own files, users and processes
ROOT_CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7

_CAPABILITY_VERSION_3 = 0x20080522
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_EINVAL = 22

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, name: str) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Move the calling process into new namespaces."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(descriptor: int, flags: int) -> None:
    """Move the calling process into namespaces of the process behind a pidfd, all at once (Linux 5.8)."""
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(flags)), "setns")


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    """mount(2) in the caller's mount namespace."""
    words = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(_libc.mount(*words), f"mount {kind} at {target}")


def unmount(target: str) -> None:
    """umount2(2), detached: it goes when nobody uses it any more."""
    _check(_libc.umount2(target.encode(), ctypes.c_int(_MNT_DETACH)), f"umount {target}")


def _prctl(option: int, argument: int) -> int:
    zero = ctypes.c_ulong(0)
    return int(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(argument), zero, zero, zero))


def become_subreaper() -> None:
    """Orphans among the caller's descendants become its children."""
    _check(_prctl(_PR_SET_CHILD_SUBREAPER, 1), "prctl(PR_SET_CHILD_SUBREAPER)")


def forbid_new_privileges() -> None:
    """The caller and its children gain nothing by executing a program, set-user-ID or not."""
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "prctl(PR_SET_NO_NEW_PRIVS)")


def drop_capability_bounds(kept: int = 0) -> None:
    """No capability but those of the mask `kept` can ever be gained again; needs CAP_SETPCAP, without which the bound stays."""
    for capability in range(64):
        if kept >> capability & 1:
            continue
        if _prctl(_PR_CAPBSET_DROP, capability) == -1:
            number = ctypes.get_errno()
            if number == _EINVAL:
                return  # past the last capability of this kernel
            raise OSError(number, f"prctl(PR_CAPBSET_DROP): {os.strerror(number)}")


def keep_capabilities(mask: int) -> None:
    """Hold no other capabilities than these (permitted and effective; none can be inherited)."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    _check(_libc.capset(header, struct.pack("=6I", low, low, 0, high, high, 0)), "capset")


def map_to_root(uid: int, gid: int) -> None:
    """In a fresh user namespace: be root of it, while outside staying `uid` and `gid`."""
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1", encoding="ascii")


def raise_loopback() -> None:
    """Bring `lo` up in the caller's network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        reply = fcntl.ioctl(handle, _SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0))
        (flags,) = struct.unpack_from("h", reply, 16)
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def foreign_namespaces(pid: int) -> int:
    """CLONE_NEW* flags of the namespaces of `pid` that are not the caller's."""
    flags = 0
    for name, flag in NAMESPACES.items():
        if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}"):  # noqa: PTH115  (for each sandbox)
            flags |= flag
    return flags


def pid_namespace() -> int:
    """Number (inode) of the caller's PID namespace, by a /proc that is mounted in it."""
    return Path("/proc/self/ns/pid").stat().st_ino


def boot_id() -> str:
    """Names the time since the machine started; another after each start. Empty where nothing tells it."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _stat(pid: str, count: int) -> list[bytes]:
    """The first fields of a process's stat behind its name; none when it is gone. Every process of the machine is read at each
    scan, so this opens no Python file."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return os.read(descriptor, 4096).rpartition(b")")[2].split(None, count)[:count]
    except OSError:
        return []
    finally:
        os.close(descriptor)


def children() -> list[int]:
    """The caller's own children, with those that have ended and were not reaped yet. One that a thread forks or reaps meanwhile
    may be missed."""
    try:
        with open("/proc/thread-self/children", encoding="ascii") as file:  # noqa: PTH123
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return children_of(ended=True).get(os.getpid(), [])


def children_of(*, ended: bool = False) -> dict[int, list[int]]:
    """Living processes by their parent, from one scan of /proc; with those that have ended and were not reaped yet, if wanted.
    In a PID namespace, parent 0 is outside."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208  (names are all that is wanted)
        if not entry.isdigit() or not (fields := _stat(entry, 2)):
            continue  # no process, or one that ended meanwhile
        if ended or fields[0] != b"Z":
            children.setdefault(int(fields[1]), []).append(int(entry))
    return children


def leaves(pid: int) -> bool:
    """Whether a process has ended, or has a SIGKILL that it has not come to yet."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            fields = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return True
    pending = int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)
    return fields["State"].split()[0] in ("Z", "X") or bool(pending & 1 << signal.SIGKILL - 1)


def session_runs(session: int) -> bool:
    """Whether a process of that session has not ended."""
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit() and (fields := _stat(entry, 4)) and int(fields[3]) == session and fields[0] not in (b"Z", b"X"):
            return True
    return False


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since the machine did; 0 when it is gone. With its pid, this is one process."""
    fields = _stat(str(pid), 20)
    return int(fields[19]) if len(fields) == 20 else 0


def cpu_seconds(pid: int) -> tuple[float, float]:
    """CPU time of a process, and of those of its children that it has reaped; 0 when it is gone."""
    if not (fields := _stat(str(pid), 15)):
        return 0.0, 0.0
    ticks = os.sysconf("SC_CLK_TCK")
    own, own_kernel, reaped, reaped_kernel = (int(field) / ticks for field in fields[11:15])
    return own + own_kernel, reaped + reaped_kernel


def descendants(pid: int, *, ended: bool = False) -> list[int]:
    """All living descendants of `pid`; with those that have ended and were not reaped yet, if wanted."""
    children = children_of(ended=ended)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
