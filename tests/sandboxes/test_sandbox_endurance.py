"""200 sandboxes in a row and 50 at once, for each backend that works: afterwards the machine is as it was."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest
from sandbox_suite import config_of, group_prefix, sh, spec_of

from whippletree import sandboxes
from whippletree.protocols import Limits

SUPPORT = sandboxes.probe()
KINDS = [
    "process",
    *([] if SUPPORT.bubblewrap else ["bubblewrap"]),
    *([] if SUPPORT.runc else ["runc"]),
    *([] if SUPPORT.podman else ["podman"]),
]
LIMITS = Limits(memory_mb=128, processes=32)


def network_namespaces() -> set[str]:
    """Those that some process is in, or holds open, on this machine."""
    found: set[str] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            found |= {target for link in _links(entry) if (target := _target(link)).startswith("net:[")}
    return found


def _links(entry: Path) -> list[Path]:
    try:
        return [entry / "ns" / "net", *(entry / "fd").iterdir()]
    except OSError:
        return []


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def machine(root: Path) -> dict[str, set[str]]:
    """What sandboxes below `root` could leave on this machine."""
    temporary = Path(tempfile.gettempdir())
    own = {pid.name for pid in Path("/proc").iterdir() if str(root).encode() in _environment_and_command(pid)}
    return {
        "processes": own,
        "mounts": {line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(root) in line},
        "cgroups": {path for path, _, _ in os.walk("/sys/fs/cgroup") if Path(path).name.startswith(group_prefix(root))},
        "files": {path.name for path in temporary.iterdir() if path.name.startswith(("whippletree-probe", "wt-podman"))},
        "folders": {path.name for path in root.iterdir()},
    }


def _environment_and_command(entry: Path) -> bytes:
    text = b""
    for kind in ("environ", "cmdline"):
        try:
            text += (entry / kind).read_bytes()
        except OSError:
            continue
    return text


async def use(kind: str, root: Path, name: str) -> None:
    box = sandboxes.create(
        config_of(kind, root, start_seconds=120), spec_of(sandbox_id=name, limits=LIMITS), gateway=("127.0.0.1", 9)
    )
    try:
        await box.start()
        done = await sh(box, "echo ok | tee f; setsid -f sleep 600 >/dev/null 2>&1", timeout=60)
        assert done.output == "ok\n"
    finally:
        await box.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_left_of_many_sandboxes(kind: str, sandbox_root: Path) -> None:
    await use(kind, sandbox_root, "first")  # the launcher runs now
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    before, networks = machine(sandbox_root), network_namespaces()
    for number in range(200):
        await use(kind, sandbox_root, f"row-{number}")
    await asyncio.gather(*(use(kind, sandbox_root, f"many-{number}") for number in range(50)))
    after = machine(sandbox_root)
    # others may have made sandboxes meanwhile: what is new of theirs must not stay
    files, networks = after.pop("files") - before.pop("files"), network_namespaces() - networks
    assert after == before == {"processes": set(), "mounts": set(), "cgroups": set(), "folders": set()}
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    for _ in range(600):
        left = files & machine(sandbox_root)["files"], networks & network_namespaces()
        if not any(left):
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail(f"files and network namespaces are left: {left}")
