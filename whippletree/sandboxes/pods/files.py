"""Archives of what is copied into a pod and out of it, made and read on this side.

Invariants (tests/sandboxes/test_sandbox_pod_files.py):
- an archive from a pod writes nothing outside its target, whatever it holds; links and special files are named and not made;
- it is held to its limits of bytes, entries and depth before anything of it is believed;
- an archive for a pod holds regular files, directories and links, and no link of the source is followed.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from whippletree.errors import SandboxError
from whippletree.sandboxes.files import DEPTH, ENTRIES, Found, parts_of

_CHUNK = 1 << 20
_HEADERS = 1536  # bytes of an archive beyond its files' own, for each entry


@dataclasses.dataclass
class Packed:
    """An archive to be unpacked below /: its file, and the directories and files that it needs or brings, as paths inside."""

    archive: IO[bytes]
    directories: list[str]
    files: list[str]

    @property
    def size(self) -> int:
        """Bytes."""
        return os.fstat(self.archive.fileno()).st_size

    def close(self) -> None:
        """Let go of the file."""
        self.archive.close()


def pack(source: Path, target: str) -> Packed:
    """The file or directory `source` as an archive for `target`. Raises SandboxError."""
    parts = _parts(target)
    packed = Packed(tempfile.TemporaryFile(prefix="whippletree-"), [], [])  # noqa: SIM115  (the caller closes it)
    try:
        with tarfile.open(fileobj=packed.archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
            if source.is_dir():
                _pack_directory(tar, source, "/" + "/".join(parts), packed)
            elif not parts:
                raise SandboxError(f"{target}: a file needs a name", "give a path below /")
            else:
                packed.directories.append("/" + "/".join(parts[:-1]))
                _pack_file(tar, source, "/" + "/".join(parts), packed)
        packed.archive.flush()
        packed.archive.seek(0)
    except OSError as error:
        packed.close()
        raise SandboxError(f"{error.filename or source}: {error.strerror}", "give a file that can be read") from error
    except BaseException:
        packed.close()
        raise
    return packed


def _parts(path: str) -> list[str]:
    try:
        return parts_of(path)
    except ValueError as error:
        raise SandboxError(str(error), "give an absolute path without ..") from error


def _pack_directory(tar: tarfile.TarFile, source: Path, inside: str, packed: Packed) -> None:
    packed.directories.append(inside)
    for name in sorted(os.listdir(source)):  # noqa: PTH208
        path, below = source / name, f"{inside.rstrip('/')}/{name}"
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            info = _info(below, tarfile.SYMTYPE, 0o777)
            info.linkname = str(path.readlink())
            tar.addfile(info)
            packed.files.append(below)
        elif stat.S_ISDIR(mode):
            _pack_directory(tar, path, below, packed)
        elif stat.S_ISREG(mode):
            _pack_file(tar, path, below, packed)
        else:
            raise SandboxError(f"{path}: only files, directories and symbolic links can be copied in", "leave it out")


def _pack_file(tar: tarfile.TarFile, source: Path, inside: str, packed: Packed) -> None:
    with source.open("rb") as file:
        status = os.fstat(file.fileno())
        info = _info(inside, tarfile.REGTYPE, stat.S_IMODE(status.st_mode) & 0o755 | 0o600)
        info.size = status.st_size
        tar.addfile(info, file)
    packed.files.append(inside)


def _info(inside: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(inside.lstrip("/"))
    info.type, info.mode = kind, mode
    return info


class Incoming:
    """An archive as it comes out of a pod, kept in a file. Use as a context manager."""

    def __init__(self, path: str, limit: int) -> None:
        """`limit`: bytes of its files."""
        self._path = path
        self._limit = limit
        self._most = limit + _HEADERS * ENTRIES + 10_240
        self._file = tempfile.TemporaryFile(prefix="whippletree-")  # noqa: SIM115
        self._size = 0

    def __enter__(self) -> Incoming:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def take(self, data: bytes) -> None:
        """Further bytes. Raises SandboxError beyond any size that the limit allows."""
        self._size += len(data)
        if self._size > self._most:
            raise SandboxError(f"{self._path}: there are more than {self._limit} bytes", "copy less")
        self._file.write(data)

    def unpack(self, target: Path) -> Found:
        """Write its files and directories below the fresh directory `target`. Raises SandboxError."""
        found = Found(self._limit)
        self._file.flush()
        self._file.seek(0)
        try:
            with tarfile.open(fileobj=self._file, mode="r:") as tar:
                for member in tar:
                    _unpack(tar, member, target, found)
        except ValueError as error:
            raise SandboxError(str(error), "copy less") from error
        except (tarfile.TarError, OSError) as error:
            raise SandboxError(f"{self._path}: the copy cannot be read: {error}", "is tar in the image a usual one?") from error
        found.skipped.sort()
        return found


def _unpack(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, found: Found) -> None:
    parts = member.name.split("/")
    if member.name.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{member.name}: not a name in a copy")
    found.count(member.name)
    if len(parts) > DEPTH:
        raise ValueError(f"{member.name}: deeper than {DEPTH} directories")
    place = target.joinpath(*parts)
    if member.isdir():
        place.mkdir(mode=0o755)
    elif member.isreg():
        data = tar.extractfile(member)
        assert data is not None
        found.files += 1
        with data, place.open("xb") as file:
            while piece := data.read(_CHUNK):
                found.take(member.name, len(piece))
                file.write(piece)
        place.chmod(0o755 if member.mode & 0o111 else 0o644)
    elif member.islnk() and (first := target.joinpath(*member.linkname.split("/"))).is_file() and ".." not in first.parts:
        found.files += 1
        found.take(member.name, first.stat().st_size)
        shutil.copy(first, place)
    else:
        found.skip(member.name)
