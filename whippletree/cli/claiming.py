"""One command at a time for the directory of a run, a grid or a fine-tuning.

The lock lies beside the directory (`.NAME.lock`), so that --overwrite can remove it, and ends with the process that holds it,
however that ends.

Invariants (tests/cli/test_claiming.py):
- a second command for the same directory is refused before it reads, starts or removes anything;
- after kill -9 of the first one the directory is free.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from whippletree.errors import ConfigurationError
from whippletree.files import locked


def claimed(directory: Path) -> AbstractContextManager[None]:
    """Hold the directory, which need not exist yet. Raises ConfigurationError when another command holds it."""
    place = directory.resolve()
    cause = f"another command is at work in {directory}"
    refused = ConfigurationError(cause, "wait for its end or stop it, or choose another directory by --run-dir")
    return locked(place.with_name(f".{place.name}.lock"), refused)
