"""One command at a time for the directory of a run, a grid or a fine-tuning.

The lock lies beside the directory (`.NAME.lock`), so that --overwrite can remove it, and ends with the process that holds it,
however that ends.

Invariants (tests/cli/test_claiming.py):
- a second command for the same directory is refused before it reads, starts or removes anything;
- after kill -9 of the first one the directory is free.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whippletree.errors import ConfigurationError


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Hold the directory, which need not exist yet. Raises ConfigurationError when another command holds it."""
    place = directory.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f".{place.name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            cause = f"another command is at work in {directory}"
            raise ConfigurationError(cause, "wait for its end or stop it, or choose another directory by --run-dir") from error
        yield
