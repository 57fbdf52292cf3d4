"""Files that other processes read while they are written, and files that one process at a time may hold.

Invariants (tests/test_files.py): a reader sees the old content or the new, never a part; nothing is left beside it; a lock is
held by one process, and free when that ends in whatever way.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from whippletree.errors import WhippletreeError

PAUSE = 0.02  # seconds between two tries to take a lock


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
    end = time.monotonic() + seconds
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise refused from None
                time.sleep(PAUSE)
        yield
