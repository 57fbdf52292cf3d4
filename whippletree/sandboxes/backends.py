"""Backends as they are chosen, and which specs none of them, or not this one, can make.

Invariants (tests/sandboxes/test_sandbox_support.py): a spec that cannot be is refused before anything is made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from whippletree.errors import SandboxError
from whippletree.protocols import SandboxSpec
from whippletree.sandboxes.network import check as check_network

WITH_IMAGES = ("runc", "podman")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TAKEN = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "proc", "dev", "sys", "run", "var", "tmp", "logs")
_KERNELS = ("proc", "dev", "sys")  # an image may have its work directory below any other


@dataclass(frozen=True)
class Backend:
    """A chosen backend. `sentence` tells people what it isolates, and why it was chosen."""

    kind: Literal["bubblewrap", "podman", "process", "runc", "kubernetes"]
    sentence: str
    bwrap: str = ""
    runc: str = ""
    criu: str = ""
    podman: str = ""


def check_names(spec: SandboxSpec) -> None:
    """Raises SandboxError for an id or a path that no sandbox can have."""
    if not _ID.fullmatch(spec.sandbox_id):
        raise SandboxError(
            f"{spec.sandbox_id!r} cannot name a sandbox", "use up to 64 letters, digits, dots, dashes, underscores"
        )
    for path in (spec.workdir, *(inside for _, inside in (*spec.files, *spec.read_only))):
        if not path.startswith("/") or ".." in path.split("/"):
            raise SandboxError(f"{path!r}: not an absolute path without ..", "mend the path of the sandbox's spec")
    top = spec.workdir.strip("/").split("/")
    if top[0] in ("", *(_KERNELS if spec.rootfs and len(top) > 1 else _TAKEN)):
        raise SandboxError(f"{spec.workdir!r} cannot be the work directory", "use a directory of its own, such as /app")


def check(spec: SandboxSpec, backend: Backend) -> None:
    """Raises SandboxError for a spec that this backend, which is on this machine, cannot make."""
    check_names(spec)
    if spec.rootfs and backend.kind not in WITH_IMAGES:
        raise SandboxError(f"a {backend.kind} sandbox has the host's programs, not a root file system", 'set kind = "runc"')
    check_network(spec)
