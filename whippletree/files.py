"""Files that other processes read while they are written, and files that one process at a time may hold.

Invariants (tests/test_files.py): a reader sees the old content or the new, never a part; nothing is left beside it; a lock is
held by one process, and free when that ends in whatever way; whoever holds it shared, to see whether it is free, keeps nobody
from it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from whippletree.errors import WhippletreeError

PAUSE = 0.02  # seconds between two tries to take a lock
LOOK_SECONDS = 10.0  # for which those who look at a lock are waited for; they hold it for moments


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside, sync, rename; the directory is made when it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_json(path: Path, record: msgspec.Struct) -> None:
    """Write a struct as indented JSON, atomically."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(record)))


@contextmanager
def locked(path: Path, refused: WhippletreeError, *, seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock file, which is made where it is missing and stays. Raises `refused` where another holds it for `seconds`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with path.open("ab") as file:
        while not _taken(file, fcntl.LOCK_EX):
            waited = time.monotonic() - begun
            if waited >= seconds and (waited >= LOOK_SECONDS or not _taken(file, fcntl.LOCK_SH)):
                raise refused
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(PAUSE)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # also for a child that is just being forked, and has the file open too


def _taken(file: IO[bytes], how: int) -> bool:
    """Take a lock, alone or with others; False where that cannot be now."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
