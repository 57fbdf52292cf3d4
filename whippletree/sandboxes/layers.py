"""The files of a runc sandbox: a root file system below, which nobody writes, and a private layer above it.

    .init, and an image's root file system ────lower───┐
    layer/upper (passwd, hosts, /app, /logs, ...) ─────┴─overlay──► rootfs      without an image also:
    host's /usr ──lower──┬─overlay──► usr ──bind──► rootfs/usr        layer/usr ──upper──┘

Everything is mounted in the keeper's own mount namespace, so that the death of the keeper and of the sandbox unmounts it. The
layer is a tmpfs of the settings' size; with size 0 it is in the sandbox's folder on disk, without a limit.

Invariants (tests/sandboxes/test_sandbox_runc.py): what a sandbox writes is seen by no other, and gone with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from whippletree.sandboxes import hostroot, kernel, machine
from whippletree.sandboxes.wire import BoxRequest

INIT = "/.init/sh"  # named so for shells that are many programs in one
_WRITABLE = (("tmp", 0o1777), ("var", 0o755), ("var/tmp", 0o1777), ("run", 0o755), ("etc", 0o755))


class Layers:
    """Lower, upper and merged directories of one sandbox below its folder."""

    def __init__(self, request: BoxRequest, folder: Path) -> None:
        self.private = folder / "layer"
        self.rootfs = folder / "rootfs"
        self.usr = folder / "usr"
        self._lowest = folder / "lowest"
        self._request = request
        self._mounted: list[Path] = []

    @property
    def held(self) -> tuple[Path, ...]:
        """Directories that hold what the sandbox wrote."""
        return (self.private / "upper", self.private / "usr")

    def make(self, owner: tuple[int, int], restored: Path | None) -> None:
        """Mount everything in the caller's mount namespace, which must be its own. `restored`: a layer to begin with."""
        for directory in (self.private, self.rootfs, self.usr):
            directory.mkdir(mode=0o755)
        if self._request.space_mb:
            self._mount("tmpfs", self.private, "tmpfs", f"mode=0755,size={self._request.space_mb << 20}")
        self._make_init()
        for name in ("upper", "usr", "work", "usr-work"):
            (self.private / name).mkdir(mode=0o755)
        if restored is not None:
            copy(restored, self.private)
        else:
            self._fill(self.private / "upper", owner)
        self._overlay(
            [str(self._lowest), *([self._request.rootfs] if self._request.rootfs else [])], "upper", "work", self.rootfs
        )
        if not self._request.rootfs:
            self._overlay(["/usr"], "usr", "usr-work", self.usr)

    def _mount(self, source: str, target: Path, kind: str, options: str) -> None:
        kernel.mount(source, str(target), kind, kernel.MS_NOSUID | kernel.MS_NODEV, options)
        self._mounted.append(target)

    def _overlay(self, lower: list[str], upper: str, work: str, target: Path) -> None:
        for path in (*lower, str(self.private)):
            if any(character in path for character in ",:\\"):
                raise machine.BootError(f"{path}: an overlay cannot have commas, colons or backslashes in its path")
        options = f"lowerdir={':'.join(lower)},upperdir={self.private / upper},workdir={self.private / work}"
        self._mount("overlay", target, "overlay", options)

    def _make_init(self) -> None:
        """A copy of the shell that nobody but root can read: what runs it cannot be traced, not by its own user either."""
        self._lowest.mkdir(mode=0o755)
        init = self._lowest / INIT[1:]
        init.parent.mkdir(mode=0o755)
        shutil.copyfile(hostroot.shell(self._request.rootfs or "/"), init)
        init.chmod(0o711)

    def _fill(self, upper: Path, owner: tuple[int, int]) -> None:
        """The few files and directories that every sandbox has."""
        for name, mode in _WRITABLE:
            self._directory(upper / name, mode)
        texts = hostroot.names() | self._accounts(owner)
        if not self._request.rootfs:
            texts |= hostroot.lookups()
            for path, target in hostroot.links():
                (upper / path[1:]).symlink_to(target)
            for path, content in hostroot.etc_files().items():
                self._directory((upper / path[1:]).parent, 0o755)
                (upper / path[1:]).write_bytes(content)
        for path, text in texts.items():
            (upper / path[1:]).write_text(text, encoding="utf-8")
        for path in (hostroot.HOME, self._request.workdir, "/logs"):
            if self._request.user and self._in_image(path):
                continue
            self._directory(upper / path[1:], 0o755)
            os.chown(upper / path[1:], *owner)
            (upper / path[1:]).chmod(0o755)

    def _accounts(self, owner: tuple[int, int]) -> dict[str, str]:
        """The image's accounts and the sandbox's own user."""
        own = hostroot.accounts(owner)
        if not self._request.rootfs:
            return own
        found: dict[str, str] = {}
        for path, text in own.items():
            image = hostroot.resolve(self._request.rootfs, path)
            theirs = image.read_text(encoding="utf-8", errors="replace") if image is not None and image.is_file() else ""
            names = {line.partition(":")[0] for line in theirs.splitlines()}
            found[path] = theirs.rstrip("\n") + "\n" * bool(theirs) if theirs else ""
            found[path] += "".join(f"{line}\n" for line in text.splitlines() if line.partition(":")[0] not in names)
        return found

    def _directory(self, path: Path, mode: int) -> None:
        """A directory of the upper layer; those above it, which it would hide, are as the image has them."""
        upper = self.private / "upper"
        for above in reversed([path, *path.parents]):
            if not above.is_relative_to(upper) or above.exists():
                continue
            above.mkdir()
            theirs = self._in_image(str(above.relative_to(upper))) if above != path else None
            if theirs is not None:
                status = theirs.stat()
                os.chown(above, status.st_uid, status.st_gid)
                above.chmod(status.st_mode & 0o7777)
            else:
                above.chmod(mode if above == path else 0o755)

    def _in_image(self, path: str) -> Path | None:
        """The directory that the image has there, its links followed inside it; None where it has none."""
        found = hostroot.resolve(self._request.rootfs, path) if self._request.rootfs else None
        return found if found is not None and found.is_dir() else None

    def unmount(self) -> None:
        """Take the mounts away, so that the folder can be removed. Does not raise."""
        for target in reversed(self._mounted):
            with contextlib.suppress(OSError):
                kernel.unmount(str(target))
        self._mounted.clear()


def copy(source: Path, target: Path) -> None:
    """Copy the directories "upper" and "usr" of a layer with owners, times, attributes and the marks of removed files."""
    for name in ("upper", "usr"):
        (target / name).mkdir(mode=0o755, exist_ok=True)
        machine.run(("cp", "-a", "--reflink=auto", f"{source / name}/.", f"{target / name}/"), seconds=machine.COPY_SECONDS)
