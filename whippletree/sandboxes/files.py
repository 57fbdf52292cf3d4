"""Copy into and read out of a sandbox, from inside its mount namespace, without following a symbolic link.

Sources are descriptors that were opened on the host, so that nothing of the host is looked up by name in here. `base` is "/"
in a mount namespace and the private folder of a process sandbox.

Invariants (tests/sandboxes/test_sandbox_files.py):
- no component of a path inside is followed when it is a symbolic link, neither for reading nor for writing;
- a copy never replaces a file; only regular files and directories are copied, links as links;
- only regular files are read, and reading never blocks.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20


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
            view = memoryview(chunk)
            while view:
                view = view[os.write(target, view) :]
        os.fchmod(target, mode)
        os.fchown(target, *owner)
    finally:
        os.close(target)
