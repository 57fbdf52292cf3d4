"""One command at a time for the directory of a run, a grid or a fine-tuning.

The lock lies beside the directory (`.NAME.lock`), so that --overwrite can remove it, and ends with the process that holds it,
however that ends.

Invariants (tests/cli/test_claiming.py):
- a second command for the same directory is refused before it reads, starts or removes anything;
- after kill -9 of the first one the directory is free;
- --overwrite removes no directory that holds what the command was given, or that one works in.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from whippletree.errors import ConfigurationError
from whippletree.files import locked


def claimed(directory: Path) -> AbstractContextManager[None]:
    """Hold the directory, which need not exist yet. Raises ConfigurationError when another command holds it."""
    place = directory.resolve()
    cause = f"another command is at work in {directory}"
    refused = ConfigurationError(cause, "wait for its end or stop it, or choose another directory by --run-dir")
    return locked(place.with_name(f".{place.name}.lock"), refused)


def overwrite(directory: Path, given: Sequence[Path]) -> None:
    """Remove what an earlier command made, for --overwrite. Raises ConfigurationError, and removes nothing, where one of the
    `given` files and directories, or the working directory, lies in it."""
    place = directory.resolve()
    for path in (Path.cwd(), *given):
        if path.expanduser().resolve().is_relative_to(place):
            cause = f"--overwrite would remove {directory}, and {path} with it"
            raise ConfigurationError(cause, "move it elsewhere, or choose another directory by --run-dir")
    shutil.rmtree(place)


@contextmanager
def resumable(command: str, directory: Path | None = None) -> Iterator[None]:
    """Say how to go on when Ctrl-C ends the body: by --resume of a directory, or, without one, by the same command."""
    try:
        yield
    except KeyboardInterrupt:
        how = "the same command" if directory is None else f"`whippletree {command} --resume {directory}`"
        print(f"whippletree {command}: stopped (go on with {how})", file=sys.stderr)
        raise
