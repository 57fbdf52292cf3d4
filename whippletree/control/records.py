"""What a harness itself recorded of its run: read out of the sandbox, kept beside the run, told in one format.

Invariants (tests/control/test_launch_process.py): no more than the limit is read in all, and links are not followed; what
cannot be read, or told, is a warning and never changes how the attempt ends; the attempt's key is in nothing that is kept.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from whippletree.errors import SandboxError
from whippletree.protocols import Harness, Sandbox

log = logging.getLogger(__name__)

RECORDS_LIMIT = 20_000_000  # bytes, of one attempt
ACCOUNT = "account.json"
_WILD = frozenset("*?[")


def root_of(pattern: str) -> tuple[str, str]:
    """A pattern as the folder or file that has to be copied, and the rest to be matched below it ("" for a plain path).

    Example: root_of("/home/agent/.pi/sessions/*/*.jsonl") == ("/home/agent/.pi/sessions", "*/*.jsonl")
    """
    parts = PurePosixPath(pattern).parts
    wild = next((place for place, part in enumerate(parts) if _WILD & set(part)), len(parts))
    if wild < len(parts) and wild < 3:
        raise ValueError(f"{pattern}: a pattern of records begins with a folder that holds little else")
    return str(PurePosixPath(*parts[:wild])), "/".join(parts[wild:])


async def fetch(sandbox: Sandbox, patterns: Sequence[str], limit: int = RECORDS_LIMIT) -> dict[str, bytes]:
    """The files that these paths and patterns name, by their path inside, in order of it. One that is missing, or that goes
    beyond the limit of bytes in all, is left out and logged."""
    found: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory(prefix="whippletree-records-") as directory:
        for number, pattern in enumerate(dict.fromkeys(patterns)):
            root, rest = root_of(pattern)
            copy = Path(directory, str(number))
            left = limit - sum(map(len, found.values()))
            try:
                await sandbox.get(root, copy, limit=left)
            except SandboxError as error:
                log.info("%s: no record %s: %s", sandbox.handle and sandbox.handle.sandbox_id, pattern, error)
                continue
            found |= await asyncio.to_thread(_read, copy, root, rest)
    return dict(sorted(found.items()))


def _read(copy: Path, root: str, rest: str) -> dict[str, bytes]:
    paths = list(copy.glob(rest)) if rest and copy.is_dir() else [copy] if not rest else []
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    return {str(PurePosixPath(root, path.relative_to(copy).as_posix())): path.read_bytes() for path in files}


def keep(directory: Path, files: Mapping[str, bytes], key: str, hidden: str) -> None:
    """Write files by their path below `directory`, without the attempt's key."""
    for name, data in files.items():
        relative = PurePosixPath(name.lstrip("/"))
        if ".." in relative.parts:
            continue
        path = directory / relative
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.replace(key.encode(), hidden.encode()))
        except OSError as error:  # an agent chose the name: too long, or below that of a file
            log.warning("%s cannot be kept: %s", name, error)


def tell(harness: Harness, output: str, records: Mapping[str, bytes]) -> bytes | None:
    """The harness's own account of the run; None where it has none, or what it left cannot be read (logged)."""
    try:
        return harness.account(output, records)
    except Exception:
        log.warning("the account of %s cannot be read", harness.name, exc_info=True)
        return None
