"""Files that other processes read while they are written.

Invariants (tests/test_files.py): a reader sees the old content or the new, never a part; nothing is left beside it.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


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
