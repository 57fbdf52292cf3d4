"""podman as a builder and importer of images; sandboxes do not run in it.

Its storage is a directory of its own beside the images, so that nothing of the user's podman is touched. Every call has a time
limit, after which podman and all that it started are killed.

Invariants (tests/sandboxes/test_sandbox_images.py): a call that fails or takes too long is an error with what was said; a
container that could not be removed is noted, and removed later.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import tempfile
import zlib
from pathlib import Path

import msgspec

from whippletree.errors import SandboxError
from whippletree.sandboxes.config import SandboxConfig
from whippletree.sandboxes.machine import PATH
from whippletree.sandboxes.recipes import Archive, Build, Reference

_ULIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")  # its defaults are above what some roots may set
_TAR = ("tar", "--extract", "--preserve-permissions", "--numeric-owner", "--xattrs", "--xattrs-include=*")
_CLEAN_SECONDS = 60.0
_SAID = 2000
_RUN_ROOT = 50
_LEFT = "left"
log = logging.getLogger(__name__)


class _Settings(msgspec.Struct):
    """The part of an image's configuration that matters here. Example: {"Env": ["PATH=/bin"], "WorkingDir": "/app"}"""

    env: list[str] = msgspec.field(name="Env", default_factory=list)
    working_dir: str = msgspec.field(name="WorkingDir", default="")
    user: str = msgspec.field(name="User", default="")


class _Inspected(msgspec.Struct):
    """One entry of `podman image inspect`. Example: {"Id": "f00d...", "Config": {...}}"""

    id: str = msgspec.field(name="Id")
    config: _Settings = msgspec.field(name="Config", default_factory=_Settings)


class Said(msgspec.Struct, frozen=True):
    """What an image says of how it is to be run. Example: Said(environment={"LANG": "C"}, workdir="/app", user="node")"""

    environment: dict[str, str] = {}
    workdir: str = ""
    user: str = ""


class Podman:
    """Calls of one podman program on one storage directory. All block and raise SandboxError."""

    def __init__(self, config: SandboxConfig, storage: Path) -> None:
        self._program = config.podman or shutil.which("podman") or ""
        self._storage = storage
        self._seconds = config.image_seconds

    @property
    def run_root(self) -> Path:
        """Where podman keeps what lives no longer than the machine; it refuses a path of more than 50 characters."""
        beside = self._storage / "run"
        if len(str(beside)) <= _RUN_ROOT:
            return beside
        return Path(tempfile.gettempdir()) / f"wt-podman-{zlib.crc32(str(self._storage).encode()):08x}"

    def pull(self, name: str) -> str:
        """Id of the image of that name, fetched if it is not there."""
        try:
            return self._inspect(name).id[:40]
        except SandboxError:
            self._run("pull", "--quiet", name)
            return self._inspect(name).id[:40]

    def export(self, source: Build | Archive | Reference, key: str, target: Path) -> Said:
        """Build or import an image, and unpack its root file system into `target`."""
        for container in self.left():
            self._remove(container)
        match source:
            case Build():
                where = ("--file", str(Path(source.context, source.file)), source.context)
                self._run("build", "--quiet", *_ULIMITS, "--isolation", "chroot", "--tag", key, *where)
                name = key
            case Archive():
                name = self._run("load", "--quiet", "--input", source.path).split()[-1]
            case Reference():
                name = source.name
        settings = self._inspect(name).config
        container = self._run("create", *_ULIMITS, "--network", "none", name, "/none").split()[-1]
        try:
            self._unpack(container, target)
        finally:
            self._remove(container)
        if not isinstance(source, Reference):
            self._forget(name)
        pairs = (entry.partition("=") for entry in settings.env)
        return Said(environment={name: value for name, _, value in pairs}, workdir=settings.working_dir, user=settings.user)

    def left(self) -> list[str]:
        """Containers that could not be removed so far; the next export tries again."""
        try:
            return [path.name for path in (self._storage / _LEFT).iterdir()]
        except FileNotFoundError:
            return []

    def _remove(self, container: str) -> None:
        """Remove a container, or note that it is left: a clean-up that fails takes nothing from what was made."""
        note = self._storage / _LEFT / container
        try:
            self._run("rm", "--force", "--time", "0", container, seconds=_CLEAN_SECONDS)
            note.unlink(missing_ok=True)
        except SandboxError as error:
            log.warning("container %s is left for later: %s", container, error)
            note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            note.touch()

    def _forget(self, image: str) -> None:
        """Remove an image from podman's storage, where it only takes space now; another of that name replaces it."""
        try:
            self._run("image", "rm", "--force", image, seconds=_CLEAN_SECONDS)
        except SandboxError as error:
            log.warning("image %s stays in podman's storage: %s", image, error)

    def _unpack(self, container: str, target: Path) -> None:
        """Export into a pipe that tar reads."""
        out, into = os.pipe()
        with open(into, "wb") as writing, open(out, "rb") as reading:  # noqa: PTH123  (descriptors)
            words = (*_TAR, "--directory", str(target))
            with subprocess.Popen(words, stdin=reading, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as tar:
                reading.close()
                try:
                    self._run("export", container, output=writing.fileno())
                finally:
                    writing.close()
                if tar.wait(self._seconds):
                    raise SandboxError(f"the image could not be unpacked: tar ended with {tar.returncode}")

    def _inspect(self, name: str) -> _Inspected:
        return msgspec.json.decode(self._run("image", "inspect", name), type=list[_Inspected])[0]

    def _run(self, *arguments: str, seconds: float = 0.0, output: int | None = None) -> str:
        """Run podman; what it wrote to its output, unless that goes elsewhere."""
        if not self._program:
            raise SandboxError("there is no podman program here", "install the package podman, or set sandbox.podman")
        storage = ("--root", str(self._storage / "root"), "--runroot", str(self.run_root))
        words = (self._program, *storage, "--cgroup-manager", "cgroupfs", "--events-backend", "none", "--runtime", "runc")
        with subprocess.Popen(
            (*words, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if output is None else output,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": PATH, "HOME": str(self._storage), "TMPDIR": str(self._storage.parent)},
            start_new_session=True,
        ) as process:
            try:
                out, errors = process.communicate(timeout=seconds or self._seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                cause = f"podman {arguments[0]} did not end within {seconds or self._seconds:g} s"
                raise SandboxError(cause, "raise sandbox.image_seconds, or look at what it waits for") from None
        if process.returncode:
            raise SandboxError(f"podman {arguments[0]}: {errors.strip()[-_SAID:]}", "mend what it names")
        return out or ""


def unpack(archive: Path, target: Path, seconds: float) -> None:
    """Unpack a tar archive of a root file system. Raises SandboxError."""
    words = (*_TAR, "--file", str(archive), "--directory", str(target))
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"{archive} was not unpacked within {seconds:g} s", "raise sandbox.image_seconds") from error
    if done.returncode:
        raise SandboxError(f"{archive}: {done.stderr.strip()[-_SAID:]}", "give a tar archive of a root file system")
