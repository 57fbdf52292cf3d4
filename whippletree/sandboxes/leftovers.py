"""Removal of what a killed controller or keeper left: processes, cgroups, folders.

Invariants (tests/sandboxes/test_sandbox_support.py): a sandbox whose keeper lives is left alone; of another nothing is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from whippletree.sandboxes import cgroups, kernel
from whippletree.sandboxes.config import SandboxConfig, root_of
from whippletree.sandboxes.keeper import LOCK, STATE, Kept, remove_folder
from whippletree.sandboxes.process import MARK
from whippletree.types import Struct

_LOCK_SECONDS = 10.0
_END_SECONDS = 10.0
_WATCHERS = (b"conmon", b"podman", b"runc")


class Cleaned(Struct):
    """What `clean` did. `alive` sandboxes belong to a controller that lives, and were left alone.

    Example: Cleaned(removed=("s0-1",), alive=())
    """

    removed: tuple[str, ...] = ()
    alive: tuple[str, ...] = ()


def clean(config: SandboxConfig, prefix: str = "") -> Cleaned:
    """Remove what killed controllers left of sandboxes whose id starts with `prefix`: processes, cgroups and folders.

    A sandbox whose controller died is removed by its own keeper within moments; this waits for that. With kind = "kubernetes"
    it is about pods, whose controllers are known by their lease, and may be on other machines; call it outside an event loop
    then. Raises ConfigurationError, and ClusterError where a cluster does not answer.
    """
    if config.kind == "kubernetes":
        from whippletree.sandboxes.pods import cluster as pod_cluster

        gone, held = asyncio.run(pod_cluster.clean(config, prefix))
        return Cleaned(removed=tuple(gone), alive=tuple(held))
    removed: list[str] = []
    alive: list[str] = []
    for folder in sorted(root_of(config).iterdir()):
        if folder.name.startswith(prefix) and folder.is_dir():
            (removed if remove_left(folder) else alive).append(folder.name)
    return Cleaned(removed=tuple(removed), alive=tuple(alive))


def remove_left(folder: Path, *, token: str = "") -> bool:
    """Remove one sandbox from outside; False when its keeper lives. With the token that it was made with, that keeper is given
    some time and then killed; a sandbox with another token is left alone."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        remove_folder(folder)
        return True
    try:
        kept = _kept(folder)
        if token and (kept is None or kept.token != token):
            return False
        if not _locked(lock, _LOCK_SECONDS if token else 1.0) and not (_leaves(kept) and _locked(lock, _LOCK_SECONDS)):
            if not token or kept is None:
                return False
            _end(kept.keeper, kernel.start_time(kept.keeper))  # it lives: it holds the lock
            if not _locked(lock, _LOCK_SECONDS):
                return False
        if kept is not None:
            ours = tuple(path for path in kept.cgroups if cgroups.PREFIX in path)
            cgroups.thaw(ours)
            if _here(kept):
                _end(kept.pid, kept.started)
            _kill_marked(folder)
            cgroups.remove(ours, seconds=_LOCK_SECONDS)
        remove_folder(folder)
        return True
    finally:
        os.close(lock)


def _kept(folder: Path) -> Kept | None:
    try:
        return msgspec.json.decode((folder / STATE).read_bytes(), type=Kept)
    except (OSError, msgspec.MsgspecError):
        return None  # killed before it was written, which is the first thing done: there is nothing but the folder


def _locked(lock: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def _leaves(kept: Kept | None) -> bool:
    """Whether the keeper has ended, or was killed and is about to; a child of it may hold the lock for a moment yet."""
    return kept is not None and _here(kept) and kernel.leaves(kept.keeper)


def _here(kept: Kept) -> bool:
    """Whether the process ids on record are of this boot and this PID namespace."""
    return (kept.boot, kept.namespace) == (kernel.boot_id(), kernel.pid_namespace())


def _end(pid: int, started: int) -> None:
    """Kill the process `pid` if it is the one that `started` then (clock ticks), and wait until it has ended. With the init of
    a PID namespace all that is in it has ended then."""
    with contextlib.suppress(OSError), _process(pid) as process:  # OSError: it has gone
        if kernel.start_time(pid) == started:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            _wait((process,), time.monotonic() + _END_SECONDS)


@contextlib.contextmanager
def _process(pid: int) -> Iterator[int]:
    """A pidfd. Raises OSError when there is no such process."""
    process = os.pidfd_open(pid)
    try:
        yield process
    finally:
        os.close(process)


def _wait(processes: Collection[int], deadline: float) -> None:
    """Wait until the processes behind these pidfds have ended, at most until that monotonic time."""
    poll = select.poll()  # not select(), whose descriptors are below 1024
    for process in processes:
        poll.register(process, select.POLLIN)
    left = set(processes)
    while left and (seconds := deadline - time.monotonic()) > 0:
        for process, _ in poll.poll(seconds * 1000):
            poll.unregister(process)
            left.discard(process)


def _kill_marked(folder: Path) -> None:
    """Kill processes of a sandbox whose keeper was killed, and wait until they have ended: those of a process sandbox carry its
    name in their environment, and those that watch over a container have its folder in their arguments."""
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        with contextlib.ExitStack() as stack:
            found: list[int] = []
            for entry in Path("/proc").iterdir():
                if not entry.name.isdigit() or int(entry.name) == os.getpid() or not _belongs(entry, folder):
                    continue
                with contextlib.suppress(OSError):  # it has ended
                    process = stack.enter_context(_process(int(entry.name)))
                    if _belongs(entry, folder):  # still this one
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                        found.append(process)
            _wait(found, deadline)
        if not found:
            return


def _belongs(entry: Path, folder: Path) -> bool:
    mark = f"{MARK}={folder}".encode()
    try:
        return mark in (entry / "environ").read_bytes().split(b"\0") or _watches(entry, folder)
    except OSError:
        return False  # it has ended, or belongs to another user


def _watches(entry: Path, folder: Path) -> bool:
    program, *arguments = (entry / "cmdline").read_bytes().split(b"\0")
    inside = f"{folder}/".encode()
    return os.path.basename(program) in _WATCHERS and any(argument.startswith(inside) for argument in arguments)  # noqa: PTH119
