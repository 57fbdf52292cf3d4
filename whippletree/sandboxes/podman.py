"""podman as a builder and importer of images; sandboxes do not run in it.

Its storage is a directory of its own beside the images, so that nothing of the user's podman is touched. Every call has a time
limit, after which podman and all that it started are killed; a `Stop` does the same from another thread, and so does the end
of this process in whatever way.

Invariants (tests/sandboxes/test_sandbox_images.py): a call that fails, takes too long or is stopped is an error with what was
said; all that it started has ended then; what it could not remove is noted, and removed later, when nobody else is at work in
the storage.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from whippletree.errors import ImageError, SandboxError
from whippletree.sandboxes import kernel
from whippletree.sandboxes.config import SandboxConfig
from whippletree.sandboxes.machine import PATH
from whippletree.sandboxes.recipes import Archive, Build, Reference

_ULIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")  # its defaults are above what some roots may set
_TAR = ("tar", "--extract", "--preserve-permissions", "--numeric-owner", "--xattrs", "--xattrs-include=*")
_CLEAN_SECONDS = 60.0
_END_SECONDS = 10.0  # for what was killed
_SAID = 2000
_RUN_ROOT = 50
_LEFT, _MAKING = "left", "making-"
_LIMITS = "sandbox.image_seconds and the task's build_timeout_sec"
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


class Stop:
    """Ends, from another thread, the making of an image that was given it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self.asked = False

    def ask(self) -> None:
        """End it as soon as can be."""
        with self._lock:
            self.asked = True
            self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(self._process.pid, signal.SIGKILL)

    @contextlib.contextmanager
    def over(self, process: subprocess.Popen[str]) -> Iterator[None]:
        """Have that process, the first of its group and not waited for by others, ended too."""
        with self._lock:
            self._process = process
            if self.asked:
                self._kill()
        try:
            yield
        finally:
            with self._lock:
                self._process = None

    def check(self) -> None:
        """Raises ImageError once it was asked."""
        if self.asked:
            raise ImageError("the making of the image was stopped", "ask for it again")


class Podman:
    """Calls of one podman program on one storage directory. All block and raise SandboxError; what podman said: ImageError."""

    def __init__(self, config: SandboxConfig, storage: Path, *, seconds: float = 0.0, stop: Stop | None = None) -> None:
        """`seconds`: limit of each call; 0: the settings'."""
        self._program = program(config)
        self._storage = storage
        self._seconds = seconds or config.image_seconds
        self._stop = stop or Stop()

    @property
    def run_root(self) -> Path:
        """Where podman keeps what lives no longer than the machine; it refuses a path of more than 50 characters."""
        beside = self._storage / "run"
        if len(str(beside)) <= _RUN_ROOT:
            return beside
        return Path(tempfile.gettempdir()) / f"wt-podman-{zlib.crc32(str(self._storage).encode()):08x}"

    def pull(self, name: str) -> str:
        """Id of the image of that name, fetched if it is not there."""
        if not (found := self.id_of(name)):
            with self._at_work(fcntl.LOCK_SH):
                self._run("pull", "--quiet", name)
            found = self._inspect(name).id[:40]
        return found

    def id_of(self, name: str) -> str:
        """Id of the image of that name; "" where it was not fetched yet."""
        try:
            return self._inspect(name).id[:40]
        except ImageError:
            return ""

    def export(self, source: Build | Archive | Reference, key: str, target: Path) -> Said:
        """Build or import an image, and unpack its root file system into `target`."""
        self.tidy()
        with self._at_work(fcntl.LOCK_SH):
            note = self._leave(f"{_MAKING}{key}")  # stays where podman is killed, or this process
            said = self._export(source, key, target)
            note.unlink(missing_ok=True)
        return said

    def _export(self, source: Build | Archive | Reference, key: str, target: Path) -> Said:
        match source:
            case Build():
                where = ("--file", str(Path(source.context, source.file)), source.context)
                self._run("build", *_ULIMITS, "--isolation", "chroot", "--tag", key, *where)
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

    def tidy(self) -> None:
        """Remove what was left, where nobody is at work now. Does not raise."""
        if not self.left():
            return
        with contextlib.suppress(BlockingIOError), self._at_work(fcntl.LOCK_EX | fcntl.LOCK_NB):
            for name in self.left():
                if not name.startswith(_MAKING):
                    self._remove(name)
                    continue
                with contextlib.suppress(SandboxError):
                    for container in self._run("ps", "--all", "--external", "--quiet", cleaning=True).split():
                        self._remove(container)
                shutil.rmtree(self._temporary, ignore_errors=True)
                (self._storage / _LEFT / name).unlink(missing_ok=True)

    @property
    def _temporary(self) -> Path:
        return self._storage / "tmp"

    @contextlib.contextmanager
    def _at_work(self, how: int) -> Iterator[None]:
        """Hold the storage: together with others, or alone. Raises BlockingIOError where that cannot be at once."""
        self._storage.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._storage / "work.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, how)
            yield
        finally:
            os.close(lock)

    def left(self) -> list[str]:
        """Containers that could not be removed so far, and what may have been killed while it was made; the next export removes
        it."""
        try:
            return [path.name for path in (self._storage / _LEFT).iterdir()]
        except FileNotFoundError:
            return []

    def _remove(self, container: str) -> None:
        """Remove a container, or note that it is left: a clean-up that fails takes nothing from what was made."""
        try:
            self._run("rm", "--force", "--time", "0", container, cleaning=True)
            (self._storage / _LEFT / container).unlink(missing_ok=True)
        except SandboxError as error:
            log.warning("container %s is left for later: %s", container, error)
            self._leave(container)

    def _leave(self, name: str) -> Path:
        note = self._storage / _LEFT / name
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        note.touch()
        return note

    def _forget(self, image: str) -> None:
        """Remove an image from podman's storage, where it only takes space now; another of that name replaces it."""
        try:
            self._run("image", "rm", "--force", image, cleaning=True)
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
                    raise ImageError(f"the image could not be unpacked: tar ended with {tar.returncode}")

    def _inspect(self, name: str) -> _Inspected:
        return msgspec.json.decode(self._run("image", "inspect", name), type=list[_Inspected])[0]

    def _run(self, *arguments: str, cleaning: bool = False, output: int | None = None) -> str:
        """Run podman; what it wrote to its output, unless that goes elsewhere. What cleans up cannot be stopped."""
        if not self._program:
            raise SandboxError("there is no podman program here", "install the package podman, or set sandbox.podman")
        storage = ("--root", str(self._storage / "root"), "--runroot", str(self.run_root))
        words = (
            *_tie(),
            self._program,
            *storage,
            "--cgroup-manager",
            "cgroupfs",
            "--events-backend",
            "none",
            "--runtime",
            "runc",
        )
        self._temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
        stop = Stop() if cleaning else self._stop
        seconds = _CLEAN_SECONDS if cleaning else self._seconds
        with subprocess.Popen(
            (*words, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if output is None else output,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={"PATH": PATH, "HOME": str(self._storage), "TMPDIR": str(self._temporary)},
            start_new_session=True,
        ) as process:
            try:
                with stop.over(process):
                    out, errors = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                _await_end(process.pid)
                cause = f"podman {arguments[0]} did not end within {seconds:g} s"
                raise ImageError(cause, f"raise {_LIMITS}, or look at what it waits for") from None
        if stop.asked:
            _await_end(process.pid)
            stop.check()
        if process.returncode:
            said = f"{out}{errors}" if arguments[0] == "build" else errors  # a step's own words are in its output
            raise ImageError(f"podman {arguments[0]}: {said.strip()[-_SAID:]}", "mend what it names")
        return out or ""


def _await_end(session: int) -> None:
    """Wait until all that was killed of a session has ended: until then it holds what is to be removed."""
    deadline = time.monotonic() + _END_SECONDS
    while kernel.session_runs(session) and time.monotonic() < deadline:
        time.sleep(0.01)


def _tie() -> tuple[str, ...]:
    """What has podman killed when the thread that waits for it ends with its process; what it builds goes with it."""
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()


def program(config: SandboxConfig) -> str:
    """Path of the podman program; "" where there is none."""
    return config.podman or shutil.which("podman") or ""


def unpack(archive: Path, target: Path, seconds: float) -> None:
    """Unpack a tar archive of a root file system. Raises SandboxError."""
    words = (*_TAR, "--file", str(archive), "--directory", str(target))
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise ImageError(f"{archive} was not unpacked within {seconds:g} s", "raise sandbox.image_seconds") from error
    if done.returncode:
        raise ImageError(f"{archive}: {done.stderr.strip()[-_SAID:]}", "give a tar archive of a root file system")
