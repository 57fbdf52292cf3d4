"""What each harness costs here, and what we add to it; every harness that is installed, or those that --only names.

cpu_s_start, wall_s_start   from its launch to its first request: CPU of its sandbox, and time
added_ms_per_call           what the gateway adds to a call: its time at the gateway less its time at the engine, less what the
                            same request takes through the same proxy with a bare server behind it (median over calls, in turn)
attempts_per_min            whole attempts through store, controller, sandbox, gateway and verifier, two at once: two commands,
                            then the end, so three calls
pool_over_process           attempts per minute of mini-SWE-agent in a pool host over one process per attempt

What does not work is left out and named on standard error. The last line is JSON:

{"bench": "harnesses", "harnesses": {"codex": {"cpu_s_start": ..., "wall_s_start": ..., ...}, ...}, "pool_over_process": ...}
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

from control_parts.plane import Plane, draft, ended, until
from startup_parts.metering import MeteredWorld, replayed
from startup_parts.model import scenario

from whippletree.control.config import ControlConfig, DeadlineConfig, HarnessBinding, PoolConfig
from whippletree.control.contract.model import make_renderer
from whippletree.errors import WhippletreeError
from whippletree.harnesses import NAMES, load_harness
from whippletree.harnesses.installing import is_installed
from whippletree.protocols import ConfiguredHarness, PoolHarness
from whippletree.store import open_store

POOLED = "mini-swe-agent"
CONCURRENCY = 2
STARTS = 3  # attempts that are timed call by call
LIMIT = 300.0  # seconds of one attempt
TEST = """#!/bin/sh
logs="${0%/tests/test.sh}/logs/verifier"
[ "$(cat bench-1.txt)" = amber ] && echo 1 > "$logs/reward.txt" || echo 0 > "$logs/reward.txt"
"""


class LeftOut(Exception):
    """A harness cannot be measured here, with the reason."""


def write_task(directory: Path) -> Path:
    """A task whose verifier looks for the first command's file."""
    texts = {
        "task.toml": "[environment]\nmemory_mb = 6144\n",
        "instruction.md": "Run two shell commands, one after the other, then say that you are done.",
        "environment/Dockerfile": "FROM x\nWORKDIR /app\n",
        "tests/test.sh": TEST,
    }
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


async def started(name: str, directory: Path, installed: Path | None, attempts: int) -> dict[str, float]:
    """Start-up, and what the gateway adds, over some attempts that are timed call by call."""
    harness = load_harness(name, installed)
    control = ControlConfig(launch="process", harness_directory=str(installed or ""), deadlines=DeadlineConfig(agent=LIMIT))
    cpu, wall, served, bare = [], [], [], []
    for number in range(attempts):
        place = directory / str(number)
        (place / "model").mkdir(parents=True)
        renderer = make_renderer(place / "model")
        world = MeteredWorld(name, harness.facts, {}, directory=place, renderer=renderer, control=control)
        (run,) = await world.run(scenario(harness.facts))
        if not (run.did_its_job and run.ended_well) or run.first_request is None or world.started is None:
            raise LeftOut(run.error or run.end.result.message or run.end.result.exit_status)
        cpu.append(world.started)
        wall.append(run.first_request - run.began)
        served += world.served()
        bare += await replayed(world.meter.calls)
    return {
        "cpu_s_start": round(statistics.median(cpu), 2),
        "wall_s_start": round(statistics.median(wall), 2),
        "added_ms_per_call": round(1000 * (statistics.median(served) - statistics.median(bare)), 1),
    }


def rate(name: str, launch: str, directory: Path, installed: Path | None, attempts: int) -> float:
    """Whole attempts per minute, CONCURRENCY at once, after as many that warm up."""
    directory.mkdir(parents=True)
    (directory / "model").mkdir()
    make_renderer(directory / "model")
    plane, ready = Plane(directory, "auto", write_task(directory / "task")), directory / "gateway.ready"
    control = ControlConfig(
        launch="pool" if launch == "pool" else "process",
        concurrency=CONCURRENCY,
        harness_directory=str(installed or ""),
        deadlines=DeadlineConfig(agent=LIMIT),
        pool=PoolConfig(hosts=1, tenants=CONCURRENCY),
    )
    gateway = plane.process("startup_parts.gateway", str(directory), str(directory / "model"), str(ready), name)
    try:
        with open_store(directory / "store") as store, gateway as child:
            port = plane.ready(child, ready)["port"]
            with plane.controlling(HarnessBinding(harness=name), control, port):
                plane.add(store, CONCURRENCY, name)
                until(lambda: ended(store) == CONCURRENCY, 4 * LIMIT)
                began = time.monotonic()
                store.create_rollouts([draft(f"m-{n}", str(plane.task), name) for n in range(attempts)]).result()
                until(lambda: ended(store) == CONCURRENCY + attempts, attempts * LIMIT)
                seconds = time.monotonic() - began
            for rollout in store.rollouts():
                if rollout.reward != 1:
                    raise LeftOut(f"an attempt came to nothing: {rollout.cause or rollout.reward}")
    finally:
        plane.boxes.cleanup()
    return 60 * attempts / seconds


def measured(name: str, directory: Path, installed: Path | None, attempts: int) -> dict[str, float]:
    """Everything of one harness."""
    found = asyncio.run(started(name, directory / "starts", installed, min(STARTS, attempts)))
    found["attempts_per_min"] = round(rate(name, "process", directory / "process", installed, attempts), 1)
    print(
        f"{name}: starts in {found['cpu_s_start']:.2f} CPU-seconds ({found['wall_s_start']:.2f} s); the gateway adds "
        f"{found['added_ms_per_call']:.1f} ms to a call; {found['attempts_per_min']:.1f} attempts a minute",
        flush=True,
    )
    return found


def chosen(only: str, installed: Path | None) -> list[str]:
    """The harnesses to measure; what is not installed is named."""
    names = [name for name in only.split(",") if name] or sorted(
        name for name in NAMES if not isinstance(load_harness(name, installed), ConfiguredHarness)
    )
    here = [name for name in names if is_installed(load_harness(name, installed), installed)]
    for name in sorted(set(names) - set(here)):
        print(f"{name}: left out, it is not installed (whippletree harness install {name})", file=sys.stderr, flush=True)
    return here


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="comma-separated names; default: all that are installed")
    parser.add_argument("--attempts", type=int, default=8, help="whole attempts per harness; in a pool five times as many")
    parser.add_argument("--directory", type=Path, help="where harnesses are installed; default: the user's cache folder")
    arguments = parser.parse_args()
    installed = arguments.directory.resolve() if arguments.directory else None
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
    found: dict[str, dict[str, float]] = {}
    result: dict[str, object] = {"bench": "harnesses", "harnesses": found}
    with tempfile.TemporaryDirectory(prefix="wt-bench-") as scratch:
        for name in chosen(arguments.only, installed):
            try:
                found[name] = measured(name, Path(scratch, name), installed, arguments.attempts)
            except (LeftOut, WhippletreeError) as error:
                print(f"{name}: left out: {error}", file=sys.stderr, flush=True)
        if POOLED in found and isinstance(load_harness(POOLED, installed), PoolHarness):
            pooled = rate(POOLED, "pool", Path(scratch, "pool"), installed, 5 * arguments.attempts)
            result["pool_over_process"] = round(pooled / found[POOLED]["attempts_per_min"], 2)
            print(f"{POOLED}: {pooled:.1f} attempts a minute in a pool host", flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
