"""The bundle's configuration file that runc reads (OCI runtime specification 1.0), as typed structs.

Invariants (tests/sandboxes/test_sandbox_oci.py): no capability, no new privilege, the usual masked and read-only paths of
/proc; the network namespace is given by its path, all others are the sandbox's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import dataclass_transform

import msgspec

_HIDDEN = ("acpi", "asound", "kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "scsi")
_FIXED = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_OWN = ("pid", "ipc", "uts", "mount")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class _Oci(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base: the specification's names are in camel case."""


class User(_Oci, frozen=True, kw_only=True, rename="camel"):
    """Example: User(uid=0, gid=0)"""

    uid: int = 0
    gid: int = 0


class Process(_Oci, frozen=True, kw_only=True, rename="camel"):
    """The init. Example: Process(args=("/usr/bin/bash", "-c", "while read -r line; do :; done"))"""

    args: tuple[str, ...]
    env: tuple[str, ...]
    terminal: bool = False
    user: User = User()
    cwd: str = "/"
    capabilities: dict[str, tuple[str, ...]] = {}
    no_new_privileges: bool = True
    oom_score_adj: int = 0


class Root(_Oci, frozen=True, kw_only=True, rename="camel"):
    """Example: Root(path="/tmp/whippletree-0/s0-1/rootfs")"""

    path: str
    readonly: bool = False


class Mount(_Oci, frozen=True, kw_only=True, rename="camel"):
    """Example: Mount(destination="/proc", type="proc", source="proc")"""

    destination: str
    type: str
    source: str
    options: tuple[str, ...] = ()


class Namespace(_Oci, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Example: Namespace(type="network", path="/proc/4711/fd/9")"""

    type: str
    path: str = ""


class Memory(_Oci, frozen=True, kw_only=True, rename="camel"):
    """Bytes. Example: Memory(limit=536870912)"""

    limit: int


class Pids(_Oci, frozen=True, kw_only=True, rename="camel"):
    """Example: Pids(limit=64)"""

    limit: int


class Device(_Oci, frozen=True, kw_only=True, rename="camel"):
    """A rule about device nodes. Example: Device(allow=False, access="rwm")"""

    allow: bool
    access: str


class Resources(_Oci, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Limits of the cgroup. Example: Resources(memory=Memory(limit=536870912), pids=Pids(limit=64))"""

    memory: Memory | None = None
    pids: Pids | None = None
    devices: tuple[Device, ...] = ()


class Linux(_Oci, frozen=True, kw_only=True, rename="camel"):
    """Example: Linux(cgroups_path="/whippletree-1a2b-s0/box", namespaces=(...), resources=Resources(), ...)"""

    cgroups_path: str
    namespaces: tuple[Namespace, ...]
    resources: Resources
    masked_paths: tuple[str, ...]
    readonly_paths: tuple[str, ...]


class Bundle(_Oci, frozen=True, kw_only=True, rename="camel"):
    """config.json of a bundle. Example: Bundle(process=..., root=Root(path="rootfs"), mounts=(...), linux=...)"""

    process: Process
    root: Root
    mounts: tuple[Mount, ...]
    linux: Linux
    annotations: dict[str, str]
    oci_version: str = "1.0.2"
    hostname: str = "sandbox"


def bundle(
    *,
    argv: tuple[str, ...],
    user: User,
    root: str,
    network: str,
    cgroup: str,
    bindings: Iterable[tuple[str, str, bool]],
    memory_mb: int,
    processes: int,
    criu_settings: str,
) -> Bundle:
    """Everything for one sandbox. `bindings` are (host path, path inside, writable); limits of 0 mean none."""
    none: dict[str, tuple[str, ...]] = dict.fromkeys(("bounding", "effective", "inheritable", "permitted", "ambient"), ())
    return Bundle(
        process=Process(args=argv, user=user, env=("PATH=/usr/sbin:/usr/bin:/sbin:/bin",), capabilities=none),
        root=Root(path=root),
        mounts=(*_kernel_mounts(), *(_binding(*binding) for binding in bindings)),
        linux=Linux(
            cgroups_path=cgroup,
            namespaces=(*(Namespace(type=kind) for kind in _OWN), Namespace(type="network", path=network)),
            resources=Resources(
                memory=Memory(limit=memory_mb << 20) if memory_mb else None,
                pids=Pids(limit=processes) if processes else None,
                devices=(Device(allow=False, access="rwm"),),
            ),
            masked_paths=(*(f"/proc/{name}" for name in _HIDDEN), "/sys/firmware"),
            readonly_paths=tuple(f"/proc/{name}" for name in _FIXED),
        ),
        annotations={"org.criu.config": criu_settings} if criu_settings else {},
    )


def _kernel_mounts() -> tuple[Mount, ...]:
    quiet = ("nosuid", "noexec")
    return (
        Mount(destination="/proc", type="proc", source="proc", options=(*quiet, "nodev")),
        Mount(destination="/dev", type="tmpfs", source="tmpfs", options=("nosuid", "strictatime", "mode=755", "size=1m")),
        Mount(
            destination="/dev/pts",
            type="devpts",
            source="devpts",
            options=(*quiet, "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
        ),
        Mount(destination="/dev/shm", type="tmpfs", source="shm", options=(*quiet, "nodev", "mode=1777", "size=64m")),
    )


def _binding(host: str, inside: str, writable: bool) -> Mount:
    options = ("rbind", "nosuid", "nodev", "rw" if writable else "ro")
    return Mount(destination=inside, type="bind", source=host, options=options)
