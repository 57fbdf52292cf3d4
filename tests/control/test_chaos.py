"""A few hundred rollouts while gateway, controller, pool hosts and sandboxes are killed at random: what holds at the end.

    killer (seeded, bounded) ──SIGKILL──► gateway │ controller │ a pool host │ a process of a sandbox; what died starts again

The test knows what it killed, which reward each rollout deserves, and which calls the harness was told that it has.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from control_world import World, write_task

from whippletree.control.config import PoolConfig
from whippletree.control.policy import RestartPolicy
from whippletree.control.process import sandbox_prefix
from whippletree.loop.processes import free_ports
from whippletree.sandboxes import probe
from whippletree.sandboxes.keeper import STATE, Kept
from whippletree.sandboxes.kernel import descendants
from whippletree.types import CauseClass, Rollout

ROLLOUTS = 240
KILLS = 24
CONCURRENCY = 12
# What a kill may show as, on an attempt that did not end well. A gateway that comes back is a slow answer and no failure.
SHOWS_AS: dict[str, set[CauseClass]] = {
    "gateway": {CauseClass.GATEWAY, CauseClass.ENGINE},
    "controller": {CauseClass.HOST_LOST},
    "host": {CauseClass.HOST_LOST},
    "sandbox": {CauseClass.SANDBOX, CauseClass.HARNESS, CauseClass.VERIFIER, CauseClass.SETUP},
}


def processes(mark: str) -> list[int]:
    """Ids of the processes whose command line has `mark` in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if mark in command and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


def grouped(prefix: str) -> list[int]:
    """Ids of the processes in control groups of sandboxes whose names begin with `prefix`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            groups = path.read_text()
        except OSError:
            continue
        if prefix in groups:
            found.append(int(path.parent.name))
    return found


def inside(world: World) -> list[int]:
    """Ids of the keepers of a run's sandboxes, and of all that is below them."""
    keepers = set(processes("whippletree.sandboxes.launcher"))
    found: set[int] = set()
    for name in world.boxes():
        try:
            kept = msgspec.json.decode((Path(world.sandbox.root) / name / STATE).read_bytes(), type=Kept)
        except OSError:
            continue  # it is being made, or removed
        if kept.keeper in keepers:  # and not another process that has its number by now
            found |= {kept.keeper, *descendants(kept.keeper)}
    return sorted(found)


def until(condition: Callable[[], bool], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)


class Supervisor:
    """Keeps gateway and controller up, each a process that may be killed."""

    def __init__(self, world: World, spec: Path, port: int) -> None:
        self.world = world
        self.commands = {
            "gateway": ["-m", "chaos_parts", str(world.directory), str(port), str(world.directory / "gateway.ready")],
            "controller": ["-m", "whippletree.control", str(spec)],
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def keep_up(self) -> None:
        for name, command in self.commands.items():
            child = self.running.get(name)
            if child is None or child.poll() is not None:
                log = (self.world.directory / f"{name}.log").open("ab")
                self.running[name] = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log)
                log.close()

    def stop(self) -> None:
        for child in reversed(list(self.running.values())):
            child.send_signal(signal.SIGTERM)
        for child in self.running.values():
            child.wait(60)

    def victims(self) -> dict[str, list[int]]:
        return {
            "gateway": [self.running["gateway"].pid],
            "controller": [self.running["controller"].pid],
            "host": sorted(set(processes("whippletree.control.pool_host")) & set(descendants(self.running["controller"].pid))),
            "sandbox": inside(self.world),
        }


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_killed_nothing_is_lost_and_nothing_is_left(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, "bubblewrap" if probe().works else "process")
    (world.port,) = free_ports(1)
    acknowledged = tmp_path / "acknowledged"
    acknowledged.touch()
    tasks = {reward: write_task(tmp_path / f"task-{reward}", TEST) for reward in (0, 1)}
    (tasks[1] / "instruction.md").write_text("touch done")
    (tasks[0] / "instruction.md").write_text("true")
    deserved = {
        name: float(reward)
        for reward, task in tasks.items()
        for name in world.add(ROLLOUTS // 2, task, harness="retrying", source=f"s{reward}", max_attempts=100)
    }
    spec = world.spec(
        adapter="chaos_parts:RetryingHarness",
        harness="retrying",
        settings={"acknowledged": str(acknowledged)},
        concurrency=CONCURRENCY,
        pool=PoolConfig(hosts=2, tenants=CONCURRENCY // 2, restart=RestartPolicy(limit=1000, first_delay=0.05, max_delay=0.2)),
    )
    path = tmp_path / "controller.json"
    path.write_bytes(msgspec.json.encode(spec))
    supervisor = Supervisor(world, path, world.port)
    killed = torment(world, supervisor, random.Random(seed), list(deserved))
    supervisor.stop()
    assert set(killed) == set(SHOWS_AS) and killed.total() >= KILLS // 2, killed
    rollouts = [world.store.rollout(name) for name in deserved]
    lost = Counter(str(attempt.cause.cause) for name in deserved for attempt in world.store.attempts(name) if attempt.cause)
    print(f"killed {dict(killed)}; attempts that were lost by that: {dict(lost)}")
    check_ends(world, rollouts, deserved)
    check_causes(world, rollouts, killed)
    check_calls(world, acknowledged)
    check_nothing_is_left(world)
    world.close()


TEST = """#!/bin/sh
root=${0%/tests/test.sh}
cd "$root/app"
[ -e done ] && echo 1 > "$root/logs/verifier/reward.txt" || echo 0 > "$root/logs/verifier/reward.txt"
"""


def torment(world: World, supervisor: Supervisor, draw: random.Random, names: list[str]) -> Counter[str]:
    """Kill now and then until the kills are used up, and wait until every rollout has ended. Returns what was killed."""
    killed: Counter[str] = Counter()
    supervisor.keep_up()
    due = time.monotonic() + 3.0
    limit = time.monotonic() + 600
    while True:
        supervisor.keep_up()
        counts = world.store.queue().counts
        ended = sum(entry.count for entry in counts if entry.state in ("succeeded", "failed"))
        if ended == len(names):  # sooner than the kills were used up
            return killed
        assert time.monotonic() < limit, counts
        if time.monotonic() > due and killed.total() < KILLS:
            found = {kind: pids for kind, pids in supervisor.victims().items() if pids}
            kind = min(sorted(found), key=lambda name: (killed[name], draw.random()))  # each gets its share
            try:
                os.kill(draw.choice(found[kind]), signal.SIGKILL)
                killed[kind] += 1
            except ProcessLookupError:
                pass
            due = time.monotonic() + draw.uniform(0.2, 1.5)
        time.sleep(0.05)


def check_ends(world: World, rollouts: list[Rollout], deserved: dict[str, float]) -> None:
    """Each rollout ended once, with the reward that it deserves, given by one attempt alone."""
    for rollout in rollouts:
        name = rollout.spec.rollout_id
        assert (rollout.state, rollout.reward) == ("succeeded", deserved[name]), (name, rollout)
        attempts = world.store.attempts(name)
        paid = [attempt for attempt in attempts if attempt.result is not None and attempt.result.reward is not None]
        assert [attempt.attempt for attempt in paid] == [rollout.attempt] == [attempts[-1].attempt]
        assert all(attempt.sealed for attempt in attempts)
        assert [attempt.attempt for attempt in attempts] == list(range(1, len(attempts) + 1))


def check_causes(world: World, rollouts: list[Rollout], killed: Counter[str]) -> None:
    """Attempts failed for what was killed and for nothing else, and never with a reward."""
    allowed = set().union(*(SHOWS_AS[kind] for kind in killed))
    for rollout in rollouts:
        for attempt in world.store.attempts(rollout.spec.rollout_id)[:-1]:
            assert attempt.cause is not None
            assert attempt.cause.cause in allowed, (killed, attempt.cause)
            assert attempt.result is None or attempt.result.reward is None


def check_calls(world: World, acknowledged: Path) -> None:
    """Every reply that a harness had whole is in the record, under its attempt, once; and its tokens can be read."""
    lines = [line.split() for line in acknowledged.read_text().splitlines()]
    assert len(lines) >= 2 * ROLLOUTS
    assert len({call_id for _, _, call_id in lines}) == len(lines)
    known: dict[tuple[str, int], dict[str, object]] = {}
    for name, number, call_id in lines:
        key = (name, int(number))
        if key not in known:
            known[key] = {call.call_id: call for call in world.store.calls(*key)}
        recorded = [call for stored, call in known[key].items() if call_id.endswith(stored.removeprefix("c-"))]
        assert len(recorded) == 1, (key, call_id, list(known[key]))
        payload = world.store.payload(recorded[0])  # type: ignore[arg-type]
        assert len(payload.sampled_ids) == len(payload.logprobs) == recorded[0].sampled_tokens  # type: ignore[attr-defined]


def check_nothing_is_left(world: World) -> None:
    """No process, sandbox folder, control group or mount of the run."""
    root = str(world.sandbox.root)
    prefix = sandbox_prefix(world.directory)
    until(lambda: not grouped(prefix) and not processes(str(world.directory)), 30)
    assert world.boxes() == []
    assert root not in Path("/proc/mounts").read_text()
    assert [path for path in Path("/sys/fs/cgroup").rglob(f"*{prefix}*") if path.is_dir()] == []
