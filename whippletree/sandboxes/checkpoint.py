"""Snapshots as a keeper makes them: everything inside stands still while its processes and files are written down.

    wait until no command runs ─► freeze ─► criu dumps the processes (they stay frozen) ─► copy the files ─► thaw
                                     └────────────────── seconds frozen ──────────────────────────────────────┘

What belongs to a running `exec` has its client outside, and could not be restored: so a snapshot of processes waits for running
commands, and holds what commands have left in the background.

Invariants (tests/sandboxes/test_sandbox_snapshots.py): files and processes are of one moment; a snapshot says what it holds and
why not more; a sandbox goes on after a snapshot, also after one that failed.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from whippletree.sandboxes import files, layers, machine, wire

if TYPE_CHECKING:
    from whippletree.sandboxes import namespaced
    from whippletree.sandboxes.layered import LayeredMachine

CRIU = ("--file-locks",)
PROCESSES, ARCHIVE, FOLDER, OUTPUTS = "processes", "files.tar", "fs", "outputs"
_CHANGED = 1  # tar's exit code when a file was no file, or changed


def of_layers(box: LayeredMachine, directory: Path, reason: str) -> wire.Frozen:
    """A copy of the private layer, while all processes stand still. Raises BootError, OSError, ValueError."""
    began = time.monotonic()
    box.signal_all(signal.SIGSTOP)
    try:
        layers.copy(box.layers.private, directory)
    finally:
        box.signal_all(signal.SIGCONT)
    return frozen(directory, began, reason)


def note_outputs(directory: Path, pipes: tuple[int, ...]) -> None:
    """Write down which pipes the keeper reads into nothing: what is restored gets another in their place."""
    (directory / OUTPUTS).write_text("".join(f"{pipe}\n" for pipe in pipes), encoding="ascii")


def outputs(directory: Path) -> list[str]:
    """What `note_outputs` wrote there."""
    return (directory / OUTPUTS).read_text(encoding="ascii").split()


def complaint(log: Path) -> str:
    """The first errors of a log of criu; "" where there are none."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "; ".join([line.partition("Error ")[2] for line in lines if "Error (" in line][:3])


def of_tmpfs(box: namespaced.NamespacedMachine, disks: tuple[str, ...], directory: Path) -> wire.Frozen:
    """An archive of private file systems, written inside by the host's tar. Raises ValueError, OSError."""
    began = time.monotonic()
    archive = os.open(directory / ARCHIVE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    box.signal_all(signal.SIGSTOP)
    try:
        status = box.inside(lambda: tar(("-c", *(path[1:] for path in disks)), archive, 1))
    finally:
        box.signal_all(signal.SIGCONT)
        os.close(archive)
    if status not in (0, _CHANGED):
        raise ValueError(f"tar ended with {status}")
    return frozen(directory, began, "bubblewrap sandboxes cannot be checkpointed")


def unpack(box: namespaced.NamespacedMachine, directory: Path) -> None:
    """Put such an archive into a fresh sandbox. Raises BootError."""
    archive = os.open(directory / ARCHIVE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = box.inside(lambda: tar(("-x", "-p"), archive, 0))
    finally:
        os.close(archive)
    if status:
        raise machine.BootError(f"the snapshot could not be unpacked: tar ended with {status}")


def tar(words: tuple[str, ...], archive: int, stream: int) -> int:
    """Run tar inside, on `archive` as its input (0) or output (1); its exit code."""
    argv = ("tar", "--numeric-owner", "--directory=/", "--file=-", *words)
    null = [(os.POSIX_SPAWN_OPEN, other, os.devnull, os.O_RDWR, 0) for other in {0, 1, 2} - {stream}]
    actions = [(os.POSIX_SPAWN_DUP2, archive, stream), *null]
    _, status = os.waitpid(os.posix_spawn("/usr/bin/tar", argv, {"PATH": machine.PATH}, file_actions=actions), 0)
    return os.waitstatus_to_exitcode(status)


def of_folder(folder: str, pids: list[int], directory: Path) -> wire.Frozen:
    """A copy of a process sandbox's folder, while its processes stand still. Raises BootError."""
    began = time.monotonic()
    _signal(pids, signal.SIGSTOP)
    try:
        machine.run(("cp", "-a", "--reflink=auto", folder, str(directory / FOLDER)), seconds=machine.COPY_SECONDS)
    finally:
        _signal(pids, signal.SIGCONT)
    return frozen(directory, began, "process sandboxes cannot be checkpointed")


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def frozen(directory: Path, began: float, reason: str) -> wire.Frozen:
    """What is told of a snapshot. `began`: since when it stood still (time.monotonic); `reason`: why it holds no processes."""
    seconds = time.monotonic() - began
    processes = files.size(str(directory / PROCESSES))
    return wire.Frozen(
        holds="files" if reason else "processes+files",
        reason=reason,
        frozen_seconds=seconds,
        files_bytes=files.size(str(directory)) - processes,
        processes_bytes=processes,
    )
