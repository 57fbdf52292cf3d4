"""Machines of attempts: `create` one, `attach` to one from another process, `probe` what works here, `clean` what was left.

One file per backend: `bubblewrap` (own root, processes and network), `runc` and `podman_backend` (the same on an overlay, also
of an image) and `process` (a private folder, no isolation). These are kept by the same small process (`keeper`), so that
commands, copies, limits and clean-up behave alike. A pod is elsewhere: it has the same protocol and no keeper (package `pods`).

Who holds whom (an arrow means: when the left end dies, the right end ends everything and goes):

    controller ──lifeline──► keeper ──lifeline──► init of the sandbox ──PID namespace──► its commands
        └── launcher: a small fork server, started once; it makes keepers cheaply and owns nothing
    pool host ──one connection per command──► keeper's child, which enters the sandbox and ends with the command

Invariants (tests/sandboxes/):
- when the controller dies, by any signal, no process of its sandboxes survives;
- a stopped sandbox leaves no process, mount, network namespace, cgroup or file;
- the helpers that run beside a sandbox import neither numpy nor aiohttp: names here are resolved on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whippletree.sandboxes.backends import Backend
    from whippletree.sandboxes.box import Box, attach
    from whippletree.sandboxes.client import SyncExec
    from whippletree.sandboxes.config import SandboxConfig
    from whippletree.sandboxes.images import ImageCache, RootImage, no_images
    from whippletree.sandboxes.leftovers import Cleaned, clean
    from whippletree.sandboxes.podman import Stop
    from whippletree.sandboxes.recipes import Archive, Build, Reference, Tree
    from whippletree.sandboxes.snapshots import fork, load_snapshot, restore
    from whippletree.sandboxes.support import SandboxSupport, choose, create, probe

__all__ = [
    "Archive",
    "Backend",
    "Box",
    "Build",
    "Cleaned",
    "ImageCache",
    "Reference",
    "RootImage",
    "SandboxConfig",
    "SandboxSupport",
    "Stop",
    "SyncExec",
    "Tree",
    "attach",
    "choose",
    "clean",
    "create",
    "fork",
    "load_snapshot",
    "no_images",
    "probe",
    "restore",
]

_HOMES = {
    "Backend": "backends",
    "Box": "box",
    "attach": "box",
    "create": "support",
    "ImageCache": "images",
    "RootImage": "images",
    "Stop": "podman",
    "no_images": "images",
    **dict.fromkeys(("Archive", "Build", "Reference", "Tree"), "recipes"),
    "SyncExec": "client",
    "SandboxConfig": "config",
    "Cleaned": "leftovers",
    "SandboxSupport": "support",
    "choose": "support",
    "clean": "leftovers",
    "fork": "snapshots",
    "load_snapshot": "snapshots",
    "restore": "snapshots",
    "probe": "support",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
