"""Copy into and out of a sandbox, and read from it, from inside its mount namespace, without following a symbolic link.

What is of the host comes as descriptors that were opened there, so that nothing of the host is looked up by name in here.
`base` is "/" in a mount namespace and the private folder of a process sandbox.

Invariants (tests/sandboxes/test_sandbox_files.py):
- no component of a path inside is followed when it is a symbolic link, neither for reading nor for writing;
- a copy never replaces a file; only regular files and directories are copied, links as links;
- only regular files are read, and reading never blocks;
- a copy out ends at its limits of bytes, entries and depth; it holds regular files and directories, and names what it skipped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Iterator

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
ENTRIES, DEPTH, _NAMED = 100_000, 100, 100


def parts_of(path: str) -> list[str]:
    """Components of an absolute path inside. Raises ValueError for one that is relative or goes up."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not path.startswith("/") or ".." in parts:
        raise ValueError(f"{path}: not an absolute path without ..")
    return parts


@contextlib.contextmanager
def _walk(base: str, parts: list[str], owner: tuple[int, int] | None) -> Iterator[int]:
    """Descriptor of a directory below `base`, missing ones made when there is an owner for them."""
    current = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            if owner is not None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=current)
                    os.chown(part, *owner, dir_fd=current, follow_symlinks=False)
            below = os.open(part, _DIRECTORY, dir_fd=current)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


def read(base: str, path: str, limit: int) -> bytes | None:
    """At most `limit` bytes of a regular file; None when there is none at that path. Raises OSError, ValueError."""
    *above, name = parts_of(path)
    try:
        with _walk(base, above, None) as directory:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(f"{path}: not a regular file")
        return file.read(limit)


@dataclasses.dataclass
class Found:
    """What a copy out found so far. `skipped` names at most 100."""

    limit: int
    files: int = 0
    bytes: int = 0
    entries: int = 0
    skipped: list[str] = dataclasses.field(default_factory=list)

    def count(self, path: str) -> None:
        """One more entry. Raises ValueError past the limit."""
        self.entries += 1
        if self.entries > ENTRIES:
            raise ValueError(f"{path}: there are more than {ENTRIES} entries")

    def take(self, path: str, size: int) -> None:
        """Further bytes of a file. Raises ValueError past the limit."""
        self.bytes += size
        if self.bytes > self.limit:
            raise ValueError(f"{path}: there are more than {self.limit} bytes")

    def skip(self, path: str) -> None:
        """What is neither a regular file nor a directory."""
        if len(self.skipped) < _NAMED:
            self.skipped.append(path)


def get(base: str, path: str, target: int, limit: int) -> Found:
    """Copy the file or directory at `path` into the directory behind `target`. Raises OSError, ValueError."""
    *above, last = parts_of(path) or [""]
    if not last:
        raise ValueError(f"{path}: give a file or directory below it")
    found = Found(limit)
    with _walk(base, above, None) as directory:
        _fetch(directory, target, last, found)
    if not found.files and found.skipped == [last]:
        raise ValueError(f"{path}: neither a regular file nor a directory")
    return found


def _fetch(source: int, target: int, path: str, found: Found) -> None:
    """Copy the last component of `path` from one directory to the other. Links and special files are skipped; opening never
    blocks."""
    name = path.rpartition("/")[2]
    found.count(path)
    mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        found.skip(path)
        return
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source)
    try:
        mode = os.fstat(handle).st_mode  # of what was opened
        if stat.S_ISDIR(mode):
            if path.count("/") >= DEPTH:
                raise ValueError(f"{path}: deeper than {DEPTH} directories")
            os.mkdir(name, 0o755, dir_fd=target)
            into = os.open(name, _DIRECTORY, dir_fd=target)
            try:
                for entry in sorted(os.listdir(handle)):  # noqa: PTH208  (a descriptor)
                    _fetch(handle, into, f"{path}/{entry}", found)
            finally:
                os.close(into)
        elif stat.S_ISREG(mode):
            _fetch_file(handle, target, path, found)
    finally:
        os.close(handle)


def _fetch_file(source: int, directory: int, path: str, found: Found) -> None:
    name = path.rpartition("/")[2]
    mode = 0o755 if os.fstat(source).st_mode & 0o111 else 0o644
    target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=directory)
    try:
        found.files += 1
        while chunk := os.read(source, _CHUNK):
            found.take(path, len(chunk))
            _write(target, chunk)
    finally:
        os.close(target)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def held(path: str) -> int:
    """Bytes that the file system at `path` holds."""
    status = os.statvfs(path)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def size(path: str) -> int:
    """Bytes on disk of all files below a directory, each once; what vanishes meanwhile is not counted."""
    total = 0
    seen: set[int] = set()
    for above, directories, names in os.walk(path):
        for name in (*directories, *names):
            with contextlib.suppress(OSError):
                status = os.lstat(f"{above}/{name}")
                if status.st_ino not in seen:
                    seen.add(status.st_ino)
                    total += status.st_blocks * 512
    return total


def put(base: str, source: int, target: str, owner: tuple[int, int]) -> None:
    """Copy the file or directory behind `source` to `target`. A directory is merged into one that exists; a file never
    replaces another. Raises OSError, ValueError."""
    parts = parts_of(target)
    if stat.S_ISDIR(os.fstat(source).st_mode):
        with _walk(base, parts, owner) as directory:
            _copy_directory(source, directory, owner)
    elif parts:
        with _walk(base, parts[:-1], owner) as directory:
            _copy_file(source, directory, parts[-1], owner)
    else:
        raise ValueError(f"{target}: a file needs a name")


def _copy_directory(source: int, target: int, owner: tuple[int, int]) -> None:
    with os.scandir(source) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            os.chown(name, *owner, dir_fd=target, follow_symlinks=False)
        elif stat.S_ISDIR(mode):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=target)
                os.chown(name, *owner, dir_fd=target, follow_symlinks=False)
            _with_both(name, source, target, owner)
        elif stat.S_ISREG(mode):
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
            try:
                _copy_file(handle, target, name, owner)
            finally:
                os.close(handle)
        else:
            raise ValueError(f"{name}: only files, directories and symbolic links can be copied in")


def _with_both(name: str, source: int, target: int, owner: tuple[int, int]) -> None:
    below = os.open(name, _DIRECTORY, dir_fd=source)
    try:
        into = os.open(name, _DIRECTORY, dir_fd=target)
        try:
            _copy_directory(below, into, owner)
        finally:
            os.close(into)
    finally:
        os.close(below)


def _copy_file(source: int, directory: int, name: str, owner: tuple[int, int]) -> None:
    mode = stat.S_IMODE(os.fstat(source).st_mode) & 0o755 | 0o600
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    target = os.open(name, flags, mode, dir_fd=directory)
    try:
        while chunk := os.read(source, _CHUNK):
            _write(target, chunk)
        os.fchmod(target, mode)
        os.fchown(target, *owner)
    finally:
        os.close(target)
