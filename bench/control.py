"""How fast the control plane is, and whether it stays so, as ratios measured in one run.

sandboxes   start and stop of a sandbox over a bare process, and of one in podman over that (bench/sandboxes.py)
attempts    attempts/s through store, controller, pool host, sandbox, gateway and verifier with an agent that makes one call,
            beside sandboxes/s that do nothing, at the same concurrency
queue       1,000 rollouts created, listed, claimed and reported when 1,000, 10,000 and 50,000 have ended before
idle        the controller's CPU while 1,000 attempts run and nothing happens

The last line is JSON: sandbox_over_process, podman_over_sandbox, attempts_per_s, rate_50k_over_1k, idle_cpu_share_1k and more.
Linux; about 2 GiB of memory for `idle`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from control_parts.plane import Plane, draft, ended, until
from gateway_parts.conversations import make_model

from whippletree import sandboxes
from whippletree.control.config import ControlConfig, DeadlineConfig, HarnessBinding, PoolConfig
from whippletree.protocols import AttemptOutcome, SandboxSpec
from whippletree.store import SqliteStore, open_store
from whippletree.types import Attempt, VerifierResult

HERE = Path(__file__).resolve().parent
CONCURRENCY = 16
TEST = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"


def write_task(directory: Path) -> Path:
    """A task whose verifier says 1."""
    texts = {
        "task.toml": "",
        "instruction.md": "nothing",
        "environment/Dockerfile": "FROM x\nWORKDIR /app\n",
        "tests/test.sh": TEST.replace("/logs", '"${0%/tests/test.sh}"/logs'),
    }
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def binding(name: str, kind: str) -> HarnessBinding:
    """A harness of the benchmark."""
    return HarnessBinding(harness=name, adapter=f"control_parts.harness:{kind}")


def pooled(concurrency: int, pool: PoolConfig) -> ControlConfig:
    """So many attempts at once, in pool hosts."""
    deadlines = DeadlineConfig(agent=600.0, grace=2.0, seal=5.0)
    return ControlConfig(launch="pool", concurrency=concurrency, pool=pool, deadlines=deadlines)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the measurements --------------------------------------------------------------------------------------------------------


async def bare_sandboxes(plane: Plane, count: int) -> float:
    """Sandboxes started and stopped per second, CONCURRENCY at once."""
    room = asyncio.Semaphore(CONCURRENCY)

    async def one(number: int) -> None:
        async with room:
            box = sandboxes.create(
                plane.sandbox, SandboxSpec(sandbox_id=f"bare-{number}", gateway_port=0), gateway=("127.0.0.1", 1)
            )
            await box.start()
            await box.stop()

    await asyncio.gather(*map(one, range(CONCURRENCY)))
    started = time.monotonic()
    await asyncio.gather(*(one(CONCURRENCY + number) for number in range(count)))
    return count / (time.monotonic() - started)


def attempts(directory: Path, count: int) -> dict[str, float]:
    """Attempts/s through everything."""
    plane, model = Plane(directory, "auto", write_task(directory / "task")), make_model(directory / "model")
    bare = asyncio.run(bare_sandboxes(plane, count))
    ready = directory / "gateway.ready"
    pool = PoolConfig(hosts=2, tenants=CONCURRENCY // 2)
    with (
        open_store(directory / "store") as store,
        plane.process("control_parts.gateway", str(directory), str(model), str(ready)) as gateway,
    ):
        port = plane.ready(gateway, ready)["port"]
        with plane.controlling(binding("one-call", "OneCall"), pooled(CONCURRENCY, pool), port):
            plane.add(store, 2 * CONCURRENCY, "one-call")
            until(lambda: ended(store) == 2 * CONCURRENCY, 120)
            store.create_rollouts([draft(f"m-{n}", str(plane.task), "one-call") for n in range(count)]).result()
            started = time.monotonic()
            until(lambda: ended(store) == count + 2 * CONCURRENCY, 600)
            rate = count / (time.monotonic() - started)
        failed = [rollout.cause for rollout in store.rollouts(states=("failed",))]
    plane.boxes.cleanup()
    if failed:
        raise SystemExit(f"{len(failed)} attempts failed: {failed[0]}")
    print(
        f"attempts: {rate:.0f}/s with {CONCURRENCY} at once; bare sandboxes {bare:.0f}/s; "
        f"an attempt costs {bare / rate:.1f} times a bare sandbox",
        flush=True,
    )
    return {"attempts_per_s": round(rate, 1), "attempt_over_sandbox": round(bare / rate, 2)}


def one_round(store: SqliteStore, name: str, count: int = 1000) -> float:
    """Rollouts per second: created, listed page by page, claimed eight at a time, reported."""
    started = time.monotonic()
    store.create_rollouts([draft(f"{name}-{number}") for number in range(count)]).result()
    listed, after = 0, ""
    while True:
        page = store.page(states=("queuing",), after=after)
        listed, after = listed + len(page.rollouts), page.next
        if not page.more:
            break
    done = []
    while claimed := store.claim("bench", 8).result():
        for attempt in claimed:
            report = Attempt(
                rollout_id=attempt.rollout_id, attempt=attempt.attempt, started=0.0, result=VerifierResult(reward=1.0)
            )
            done.append(store.finish(AttemptOutcome(attempt=report)))
    assert all(future.result() for future in done) and listed == len(done) == count
    return count / (time.monotonic() - started)


def queue(directory: Path) -> dict[str, float]:
    """Whether finished rollouts slow down the queue."""
    rates: dict[int, float] = {}
    with open_store(directory / "store") as store:
        one_round(store, "warm")
        ended = 1000
        for level in (1000, 10_000, 50_000):
            while ended < level:
                fill(store, f"fill-{ended}", 1000)
                ended += 1000
            rates[level] = max(one_round(store, f"round-{level}-{turn}") for turn in range(3))
            ended += 3000
            print(f"queue: {rates[level]:.0f} rollouts/s created, listed, claimed and reported after {level} ended", flush=True)
    return {
        "rate_50k_over_1k": round(rates[50_000] / rates[1000], 3),
        "rate_10k_over_1k": round(rates[10_000] / rates[1000], 3),
    }


def fill(store: SqliteStore, name: str, count: int) -> None:
    """So many more that have ended."""
    store.create_rollouts([draft(f"{name}-{number}") for number in range(count)]).result()
    reports = [
        Attempt(rollout_id=attempt.rollout_id, attempt=1, started=0.0, result=VerifierResult(reward=1.0))
        for attempt in store.claim("fill", count).result()
    ]
    for future in [store.finish(AttemptOutcome(attempt=report)) for report in reports]:
        future.result()


def idle(directory: Path, count: int, seconds: float = 10.0) -> dict[str, float]:
    """The controller's share of one core while `count` attempts run."""
    plane = Plane(directory, "process", write_task(directory / "task"))
    pool = PoolConfig(hosts=4, tenants=count // 4)
    with (
        open_store(directory / "store") as store,
        plane.controlling(binding("idle", "Idle"), pooled(count, pool), 9) as pid,
    ):
        plane.add(store, count, "idle")
        until(lambda: begun(store, count), 600)
        before, started = cpu_seconds(pid), time.monotonic()
        time.sleep(seconds)
        share = (cpu_seconds(pid) - before) / (time.monotonic() - started)
        store.cancel([rollout.spec.rollout_id for rollout in store.rollouts(states=("running",))], "measured").result()
        until(lambda: not any(Path(plane.sandbox.root).iterdir()), 600)
    plane.boxes.cleanup()
    print(f"idle: the controller takes {100 * share:.1f} % of a core while {count} attempts run", flush=True)
    return {"idle_cpu_share_1k": round(share, 4)}


def begun(store: SqliteStore, count: int) -> bool:
    """Whether the agent of every rollout is at work: its set-up has ended."""
    running = store.page(states=("running",), order="updated", limit=count + 1).rollouts
    return len(running) == count and all(
        any(event.data.get("name") == "setup" for event in store.events(rollout.spec.rollout_id)) for rollout in running[-20:]
    )


def sandbox_ratios() -> dict[str, float]:
    """From bench/sandboxes.py, in this run; what does not work here is left out."""
    command = [sys.executable, str(HERE / "sandboxes.py"), "--rounds", "10"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = done.stdout.splitlines()
    print("\n".join(lines[:-1]), flush=True)
    return {name: value for name, value in json.loads(lines[-1]).items() if value is not None}


def main() -> None:
    """Measure everything and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=200)
    parser.add_argument("--running", type=int, default=1000)
    parser.add_argument("--only", default="", help="comma-separated: sandboxes,attempts,queue,idle")
    arguments = parser.parse_args()
    wanted = set(filter(None, arguments.only.split(",")))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="whippletree-bench-") as directory:
        parts: dict[str, Callable[[], dict[str, float]]] = {
            "sandboxes": sandbox_ratios,
            "attempts": lambda: attempts(fresh(Path(directory) / "attempts"), arguments.attempts),
            "queue": lambda: queue(Path(directory) / "queue"),
            "idle": lambda: idle(fresh(Path(directory) / "idle"), arguments.running),
        }
        for name, part in parts.items():
            if not wanted or name in wanted:
                found |= part()
    print(json.dumps({"bench": "control", **found}))


def fresh(directory: Path) -> Path:
    """An empty directory."""
    directory.mkdir()
    return directory


if __name__ == "__main__":
    main()
