"""Tasks whose environment is an image that is really built here, without any registry."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from control_world import PASS_IF_DONE, World, write_task

from whippletree import sandboxes
from whippletree.sandboxes.podman import Podman

BUSYBOX = shutil.which("busybox") or ""
STATIC = bool(BUSYBOX) and subprocess.run(("ldd", BUSYBOX), capture_output=True, check=False).returncode != 0
NO_IMAGES = sandboxes.no_images(sandboxes.SandboxConfig(kind="runc"))[0] or ("" if STATIC else "no static busybox here")
NO_RUNC = "" if NO_IMAGES else sandboxes.probe().runc
needs_images = pytest.mark.skipif(bool(NO_IMAGES or NO_RUNC), reason=f"no sandboxes on images here: {NO_IMAGES or NO_RUNC}")

BASE = 'FROM scratch\nCOPY busybox /bin/busybox\nCOPY busybox /bin/sh\nRUN ["/bin/busybox", "--install", "-s", "/bin"]\n'


def write_image_task(directory: Path, lines: str = "", *, test: str = PASS_IF_DONE, toml: str = "") -> Path:
    """A task whose Dockerfile is BASE, `WORKDIR /app` and these lines."""
    write_task(directory, test=test, toml=toml)
    (directory / "environment" / "Dockerfile").write_text(f"{BASE}WORKDIR /app\n{lines}")
    shutil.copy(BUSYBOX, directory / "environment" / "busybox")
    return directory


@contextmanager
def on_images(world: World) -> Iterator[Path]:
    """Sandboxes of runc on images that are kept in a directory of this test's own, which is given."""
    with tempfile.TemporaryDirectory(prefix="wt-i-", ignore_cleanup_errors=True) as name:
        images = Path(name)
        world.sandbox = msgspec.structs.replace(world.sandbox, kind="runc", images=name)
        try:
            yield images
        finally:
            clean(images)


def clean(images: Path) -> None:
    """Take away what podman keeps mounted, and its folder elsewhere."""
    storage = images / "podman"
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        if line.split()[1].startswith(str(storage)):
            subprocess.run(("umount", line.split()[1]), check=False, capture_output=True)
    shutil.rmtree(Podman(sandboxes.SandboxConfig(), storage).run_root, ignore_errors=True)


def kept(images: Path) -> list[str]:
    """Keys of the images that are there."""
    return sorted(path.parent.name for path in images.glob("*/image.json"))
