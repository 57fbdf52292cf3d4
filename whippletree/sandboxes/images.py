"""Root file systems made of images: built or imported once, kept by content, used by many sandboxes at once.

    key ──► <images>/<key>/rootfs      what sandboxes have as their lower layer; nobody writes to it
            <images>/<key>/image.json  what it was made of, its size, and what the image says of environment, directory and user
            <images>/<key>/image.lock  held (shared) by the keepers of its sandboxes
            <images>/<key>.lock        held by the process that makes or removes it

The key is the digest of the build context (names, modes, contents) and its file, of the archive, or of the image itself.

Invariants (tests/sandboxes/test_sandbox_images.py): one process makes an image while others wait for it; what is there is
whole, because it is moved into place last; an image that a sandbox uses, or that is held, is not removed; whoever waits, or
makes, can be stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from whippletree.errors import ConfigurationError, SandboxError
from whippletree.sandboxes import files
from whippletree.sandboxes.box import WITH_IMAGES
from whippletree.sandboxes.config import SandboxConfig
from whippletree.sandboxes.keeper import IMAGE_LOCK
from whippletree.sandboxes.podman import Podman, Said, Stop, program, unpack
from whippletree.sandboxes.recipes import Archive, Build, Reference, Source, Tree
from whippletree.sandboxes.support import choose
from whippletree.types import Struct

_RECORD = "image.json"
_MAKING = ".making-"
_STALE_SECONDS = 3600.0
_AT_ONCE = 2
_CHUNK = 1 << 20
_FRESH_SECONDS = 60.0  # an image that was asked for so recently may be about to be used
_POLL_SECONDS = 0.05


class RootImage(Struct, frozen=True):
    """A root file system that sandboxes can be made on (`SandboxSpec.rootfs`), and what its image says.

    Example: RootImage(key="b-1f00...", rootfs="/var/images/b-1f00.../rootfs", bytes=229000000, environment={"LANG": "C"})
    """

    key: str
    rootfs: str
    bytes: int
    environment: dict[str, str] = {}
    workdir: str = ""
    user: str = ""


def no_images(config: SandboxConfig) -> tuple[str, str]:
    """Why sandboxes of these settings cannot be made on images, and what to do; ("", "") where they can. May try a backend."""
    try:
        kind = choose(config).kind
    except ConfigurationError as error:
        return error.cause, error.next_step
    if kind not in WITH_IMAGES:
        return f"a {kind} sandbox has the host's programs, not an image's", f'set sandbox.kind = "{WITH_IMAGES[0]}"'
    if not program(config):
        return "there is no podman program here, which builds and fetches images", "install it, or set sandbox.podman"
    return "", ""


class ImageCache:
    """The images of one directory; several processes may use it. Calls block, but for `prewarm`."""

    def __init__(self, config: SandboxConfig) -> None:
        default = Path(tempfile.gettempdir()) / f"whippletree-images-{os.geteuid()}"
        self.directory = Path(config.images).absolute() if config.images else default
        self._config = config
        self._seconds = config.image_seconds
        self._limit = int(config.images_gb * 2**30)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.directory.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise SandboxError(
                f"sandbox.images: others can write to {self.directory}", "give a directory that only you can write to"
            )

    def get(self, source: Source, *, seconds: float = 0.0, stop: Stop | None = None) -> RootImage:
        """The root file system of an image, made now if it is not there. `seconds`: limit of making it, no more than the
        settings' (0: those). Raises SandboxError: ImageError with what podman or tar said, and after `stop` was asked."""
        stop = stop or Stop()
        stop.check()
        limit = min(seconds or self._seconds, self._seconds)
        podman = Podman(self._config, self.directory / "podman", seconds=limit, stop=stop)
        key = self._key(source, podman)
        with self._locked(key, stop):
            found = self._find(key)
            if found is None:
                found = self._make(source, key, podman)
            os.utime(self.directory / key)
        self.trim()
        return found

    def find(self, source: Source) -> RootImage | None:
        """The same if it is there, and None if it would have to be made. Raises SandboxError."""
        podman = Podman(self._config, self.directory / "podman")
        key = self._key(source, podman, fetch=False)
        if not key or (found := self._find(key)) is None:
            return None
        with contextlib.suppress(FileNotFoundError):  # it is being removed; `hold` will say so
            os.utime(self.directory / key)
        return found

    def hold(self, image: RootImage) -> int:
        """A descriptor; the image is not removed before that is closed. -1 where it has been removed."""
        try:
            lock = os.open(self.directory / image.key / IMAGE_LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return -1
        fcntl.flock(lock, fcntl.LOCK_SH)
        if self._find(image.key) is None:  # it was removed meanwhile
            os.close(lock)
            return -1
        return lock

    def tidy(self) -> None:
        """Remove what killed makings have left in podman's storage, unless somebody is at work there. Does not raise."""
        Podman(self._config, self.directory / "podman").tidy()

    async def prewarm(self, sources: Sequence[Source]) -> list[RootImage | SandboxError]:
        """Make images, a few at a time; for each source the image, or why it cannot be."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(source: Source) -> RootImage | SandboxError:
            async with slots:
                try:
                    return await asyncio.to_thread(self.get, source)
                except SandboxError as error:
                    return error

        return await asyncio.gather(*(one(source) for source in sources))

    def images(self) -> list[RootImage]:
        """All that are there, the one that was not used for longest first."""
        entries = [path for path in self.directory.iterdir() if (path / _RECORD).exists()]
        found = [self._find(path.name) for path in sorted(entries, key=lambda path: path.stat().st_mtime)]
        return [image for image in found if image is not None]

    def trim(self) -> list[str]:
        """Remove the images that were not used for longest until the rest fits the limit; the keys of those removed."""
        for path in self.directory.glob(f"{_MAKING}*"):  # of processes that were killed
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > self._seconds + _STALE_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)
        images = self.images()
        total = sum(image.bytes for image in images)
        removed: list[str] = []
        for image in images:
            if total <= self._limit:
                break
            if self._remove(image.key):
                removed.append(image.key)
                total -= image.bytes
        return removed

    def _find(self, key: str) -> RootImage | None:
        try:
            return msgspec.json.decode((self.directory / key / _RECORD).read_bytes(), type=RootImage)
        except OSError:
            return None

    def _key(self, source: Source, podman: Podman, *, fetch: bool = True) -> str:
        """The key of an image; "" for one that would have to be fetched to know."""
        try:
            match source:
                case Build():
                    return f"b-{digest_of_context(Path(source.context), source.file)}"
                case Archive():
                    return f"a-{_digest_of_file(Path(source.path))}"
                case Tree():
                    return f"t-{_digest_of_file(Path(source.path))}"
                case Reference():
                    name = podman.pull(source.name) if fetch else podman.id_of(source.name)
                    return f"r-{name}" if name else ""
        except OSError as error:
            raise SandboxError(f"{error.filename}: {error.strerror}", "give a context or archive that can be read") from error

    def _make(self, source: Source, key: str, podman: Podman) -> RootImage:
        """Under the lock of the key: make it aside, and move it into place."""
        aside = Path(tempfile.mkdtemp(prefix=_MAKING, dir=self.directory))
        try:
            rootfs = aside / "rootfs"
            rootfs.mkdir(mode=0o755)
            if isinstance(source, Tree):
                said = Said()
                unpack(Path(source.path), rootfs, self._seconds)
            else:
                said = podman.export(source, key, rootfs)
            made = RootImage(
                key=key,
                rootfs=str(self.directory / key / "rootfs"),
                bytes=files.size(str(rootfs)),
                environment=said.environment,
                workdir=said.workdir,
                user=said.user,
            )
            (aside / IMAGE_LOCK).touch(mode=0o600)
            (aside / _RECORD).write_bytes(msgspec.json.encode(made))
            aside.chmod(0o755)
            shutil.rmtree(self.directory / key, ignore_errors=True)  # what is left of one whose removal was cut short
            aside.rename(self.directory / key)
        except OSError as error:
            raise SandboxError(f"no image can be made: {error.strerror}: {error.filename}", "look at sandbox.images") from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            podman.tidy()
        return made

    def _remove(self, key: str) -> bool:
        """Remove an image, unless it is used, made or asked for."""
        entry = self.directory / key
        with self._locked(key) as locked, contextlib.suppress(OSError):
            if not locked or time.time() - entry.stat().st_mtime < _FRESH_SECONDS:
                return False
            lock = os.open(entry / IMAGE_LOCK, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (entry / _RECORD).unlink()
                shutil.rmtree(entry, ignore_errors=True)
                return True
            finally:
                os.close(lock)
        return False

    @contextlib.contextmanager
    def _locked(self, key: str, waiting: Stop | None = None) -> Iterator[bool]:
        """Hold the lock of a key across processes: once it is free and `waiting` not stopped, or False if it is not free."""
        lock = os.open(self.directory / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not (locked := _try_lock(lock)) and waiting is not None:
                waiting.check()
                time.sleep(_POLL_SECONDS)
            yield locked
        finally:
            os.close(lock)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def digest_of_context(context: Path, file: str) -> str:
    """Digest of a build context: names, modes, link targets and contents of all that is in it. Raises OSError."""
    digest = hashlib.sha256(file.encode())
    if not context.is_dir():
        raise NotADirectoryError(20, "not a directory", str(context))
    for path in sorted(context.rglob("*")):
        status = path.lstat()
        digest.update(b"\0".join((str(path.relative_to(context)).encode(), oct(status.st_mode).encode(), b"")))
        if stat.S_ISLNK(status.st_mode):
            digest.update(str(path.readlink()).encode())
        elif stat.S_ISREG(status.st_mode):
            digest.update(_digest_of_file(path).encode())
    return digest.hexdigest()[:40]


def _digest_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()[:40]
