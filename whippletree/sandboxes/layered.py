"""What the backends on an overlay of our own share: runc and podman start an init on it, and nothing else.

The layers are mounted in a mount namespace of the keeper, in which the other program runs too, so that all mounts go with the
keeper and the sandbox.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from whippletree.sandboxes import hostroot, kernel, machine
from whippletree.sandboxes.layers import Layers
from whippletree.sandboxes.namespaced import NamespacedMachine
from whippletree.sandboxes.wire import BoxRequest

WAIT = "while read -r line; do :; done"


class LayeredMachine(NamespacedMachine):
    """One sandbox on an overlay, seen from its keeper. Subclasses start the init."""

    def __init__(self, request: BoxRequest, directories: tuple[str, ...], cgroup: str) -> None:
        super().__init__(request, directories)
        self.cgroup = cgroup  # where the other program puts what it starts, in every hierarchy
        self.folder = Path(request.root) / request.sandbox_id
        self.layers = Layers(request, self.folder)
        self.disks: tuple[str, ...] = ("/",)

    @property
    def snapshot_of(self) -> Path | None:
        """The snapshot that it begins with."""
        return Path(self._request.restored) if self._request.restored else None

    def make_layers(self) -> None:
        """Mount the files of the sandbox, in a mount namespace of the keeper's own."""
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_SLAVE, "")
        self.layers.make(self.owner, self.snapshot_of)

    def adopt(self) -> None:
        """The layer was made so."""

    def bindings(self) -> Iterator[tuple[str, str, bool]]:
        """(host path, path inside, writable) of what is bound on top of the layers. Raises BootError."""
        if not self._request.rootfs:
            yield str(self.layers.usr), "/usr", True
            for path in hostroot.directories():
                yield path, path, False
        for host, inside in self._request.read_only:
            if not os.path.exists(host):  # noqa: PTH110
                raise machine.BootError(f"read_only: {host} does not exist")
            yield host, inside, False

    def stop(self) -> None:
        """Kill all inside, then take the mounts away."""
        try:
            super().stop()
        finally:
            self.layers.unmount()
