"""What a sandbox costs, as ratios measured in one run: start + one command + stop, one after the other.

    process:  fork and exec of /bin/true, and its end
    bubblewrap, runc:  a sandbox that is started, runs /bin/true once, and is stopped, with limits
    podman:  `podman run --rm` of /bin/true on a root file system with a private layer, no network

The kinds take turns within each round, so that a change of the machine's load meets all of them. Ratios are of medians. What
does not work here is left out, with the reason; its keys are then null. The last line is JSON; see `KEYS`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from whippletree import sandboxes
from whippletree.protocols import Limits, SandboxSpec

KEYS = ("sandbox_over_process", "podman_over_sandbox", "runc_over_sandbox", "checkpoint_frozen_s", "fork_s")
LIMITS = Limits(memory_mb=256, processes=64)
ULIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
AWAY = ("127.0.0.1", 9)

Once = Callable[[int], Awaitable[None]]


async def process(number: int) -> None:
    """The bare process."""
    subprocess.run(("/bin/true",), check=True)  # noqa: ASYNC221  (blocking is what is measured)


def sandbox(kind: str, root: Path) -> Once:
    """A sandbox of that kind."""

    async def once(number: int) -> None:
        config = sandboxes.SandboxConfig(kind=kind, root=str(root))  # type: ignore[arg-type]
        box = sandboxes.create(config, SandboxSpec(sandbox_id=f"{kind}-{number}", limits=LIMITS), gateway=AWAY)
        await box.start()
        try:
            done = await box.exec(("/bin/true",), timeout=60)
            assert done.exit_code == 0, done
        finally:
            await box.stop()

    return once


class Podman:
    """podman on a storage and a root file system of its own."""

    def __init__(self, directory: Path) -> None:
        self.rootfs = directory / "rootfs"
        (self.rootfs / "bin").mkdir(parents=True)
        shutil.copy(shutil.which("busybox") or "", self.rootfs / "bin" / "true")
        storage = ("--root", str(directory / "p"), "--runroot", str(directory / "r"), "--events-backend", "none")
        self.words = (shutil.which("podman") or "", *storage, "--runtime", "runc", "--cgroup-manager", "cgroupfs")

    async def once(self, number: int) -> None:
        """One container."""
        words = ("run", "--rm", "--net=none", *ULIMITS, "--rootfs", f"{self.rootfs}:O", "/bin/true")
        await asyncio.to_thread(subprocess.run, (*self.words, *words), check=True, capture_output=True, timeout=120)

    def close(self, directory: Path) -> None:
        """Take its mounts away."""
        subprocess.run(("umount", str(directory / "p" / "overlay")), check=False, capture_output=True)


async def measure(kinds: dict[str, Once], rounds: int) -> dict[str, list[float]]:
    """Seconds of each kind in each round; a first round is not counted."""
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds + 1):
        for kind, once in kinds.items():
            began = time.perf_counter()
            await once(number)
            if number:
                seconds[kind].append(time.perf_counter() - began)
    return seconds


async def snapshot(config: sandboxes.SandboxConfig, directory: Path) -> tuple[float, float]:
    """Seconds that a sandbox with one Python process stands still for its snapshot, and that one fork takes."""
    box = sandboxes.create(config, SandboxSpec(sandbox_id="source"), gateway=AWAY)
    await box.start()
    try:
        sleeper = "exec python3 -c 'import time; x = bytearray(20 << 20); time.sleep(600)' >/dev/null 2>&1"
        await box.exec(("setsid", "-f", "sh", "-c", sleeper), timeout=60)
        await asyncio.sleep(0.5)
        made = await box.snapshot(directory / "snapshot")
    finally:
        await box.stop()
    began = time.perf_counter()
    forks = await sandboxes.fork(config, made, [SandboxSpec(sandbox_id=f"fork-{n}") for n in range(4)], gateway=AWAY)
    seconds = (time.perf_counter() - began) / len(forks)
    await asyncio.gather(*(fork.stop() for fork in forks))
    return made.frozen_seconds, seconds


def podman_reason() -> str:
    """Why podman is left out; "" where it is not."""
    if not shutil.which("podman"):
        return "there is no podman program here"
    return "" if shutil.which("busybox") else "there is no busybox to put into its root file system"


async def main(rounds: int, criu: str) -> None:
    """Measure and print."""
    cpu = next((line.split(": ")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?")
    print(f"{platform.node()}: {os.cpu_count()} x {cpu}, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}")
    directory = Path(tempfile.mkdtemp(prefix="wtb-"))
    config = sandboxes.SandboxConfig(kind="runc", root=str(directory / "s"), criu=criu)
    found = await asyncio.to_thread(sandboxes.probe, config)
    reasons = {"bubblewrap": found.bubblewrap, "runc": found.runc, "podman": podman_reason(), "checkpoint": found.checkpoint}
    kinds: dict[str, Once] = {"process": process}
    kinds |= {kind: sandbox(kind, directory / "s") for kind in ("bubblewrap", "runc") if not reasons[kind]}
    podman = None if reasons["podman"] else Podman(directory)
    if podman is not None:
        kinds["podman"] = podman.once
    out: dict[str, float | None] = dict.fromkeys(KEYS)
    try:
        median = {kind: statistics.median(each) for kind, each in (await measure(kinds, rounds)).items()}
        for kind, seconds in median.items():
            print(f"{kind:12s} {seconds * 1000:8.1f} ms  {seconds / median['process']:6.1f} x process")
        for key, over, under in (
            ("sandbox_over_process", "bubblewrap", "process"),
            ("podman_over_sandbox", "podman", "bubblewrap"),
            ("runc_over_sandbox", "runc", "bubblewrap"),
        ):
            if over in median and under in median:
                out[key] = round(median[over] / median[under], 2)
        if not reasons["checkpoint"]:
            out["checkpoint_frozen_s"], out["fork_s"] = (round(value, 3) for value in await snapshot(config, directory))
        for kind, reason in reasons.items():
            if reason:
                print(f"{kind} is left out: {reason}")
    finally:
        if podman is not None:
            podman.close(directory)
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(out))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--criu", default="", help="path of a criu that works here; empty: the one on PATH")
    arguments = parser.parse_args()
    sys.exit(asyncio.run(main(arguments.rounds, arguments.criu)))
