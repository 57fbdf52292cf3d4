"""Pool hosts: real host processes that run a small real harness on threads, die, get stuck and are replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from whippletree.control import lifeline
from whippletree.control.config import PoolConfig
from whippletree.control.policy import RestartPolicy
from whippletree.control.pool import Pool
from whippletree.control.wire import Done, Failed, Ready, Run, decode_order, decode_report, encode
from whippletree.errors import HarnessError
from whippletree.protocols import AttemptSpec, HarnessResult
from whippletree.types import CauseClass

QUICK = RestartPolicy(limit=3, first_delay=0.02, max_delay=0.05)


def attempt(name: str, directory: Path, base_url: str = "", **settings: object) -> AttemptSpec:
    return AttemptSpec(
        rollout_id=name,
        attempt=1,
        instruction="say ok",
        base_url=base_url,
        api_key=f"wt-{name}",
        model="policy",
        workdir="/app",
        output_dir=str(directory),
        settings={"ask": bool(base_url), **settings},
    )


@asynccontextmanager
async def pool(
    directory: Path, harness: str = "HttpHarness", *, hosts: int = 1, tenants: int = 4, grace: float = 10.0
) -> AsyncIterator[Pool]:
    config = PoolConfig(hosts=hosts, tenants=tenants, ready_seconds=60.0, restart=QUICK)
    made = Pool(f"harness_parts:{harness}", config, directory, grace=grace)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def until(condition, seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        await asyncio.sleep(0.01)


def pids(pool: Pool) -> list[int]:
    return [host.ready.pid for host in pool.status() if host.ready]


async def test_many_tenants_share_hosts_that_loaded_the_harness_once(tmp_path: Path, endpoint) -> None:
    async with pool(tmp_path, hosts=2) as made:
        await until(lambda: len(pids(made)) == 2)
        endpoint.gate.clear()
        runs = [asyncio.create_task(made.run(attempt(f"r{n}", tmp_path, endpoint.url), 60)) for n in range(8)]
        await until(lambda: len(endpoint.asked) == 8)
        assert [host.tenants for host in made.status()] == [4, 4]
        endpoint.gate.set()
        ends = await asyncio.gather(*runs)
        assert {end.result for end in ends} == {HarnessResult(exit_status="Submitted", steps=1)}
        assert sorted(endpoint.asked) == [f"Bearer wt-r{n}" for n in range(8)]
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert logs.count("loading: this must not disturb") == 2
    assert logs.count("prints to standard output") == 8


async def test_start_reports_what_the_import_cost(tmp_path: Path) -> None:
    made = Pool("harness_parts:HttpHarness", PoolConfig(hosts=1), tmp_path, grace=1.0)
    ready = await made.start()
    assert ready.pid != os.getpid() and ready.seconds >= 0.0 and ready.cpu_seconds > 0.0 and ready.rss_mb > 1.0
    await made.close()
    assert lifeline.session_members(ready.pid) == []


async def test_a_run_waits_for_a_slot(tmp_path: Path, endpoint) -> None:
    async with pool(tmp_path, tenants=1) as made:
        endpoint.gate.clear()
        runs = [asyncio.create_task(made.run(attempt(f"r{n}", tmp_path, endpoint.url), 60)) for n in range(3)]
        await until(lambda: len(endpoint.asked) == 1)
        await asyncio.sleep(0.1)
        assert len(endpoint.asked) == 1
        endpoint.gate.set()
        assert [end.result.exit_status for end in await asyncio.gather(*runs)] == ["Submitted"] * 3


@pytest.mark.parametrize(("setting", "status"), [("raise", "RuntimeError"), ("exit", "SystemExit")])
async def test_a_tenants_exception_is_its_own_result(tmp_path: Path, setting: str, status: str) -> None:
    async with pool(tmp_path) as made:
        bad, good = await asyncio.gather(
            made.run(attempt("bad", tmp_path, **{setting: "the agent fell over"}), 60),
            made.run(attempt("good", tmp_path), 60),
        )
        assert bad.result.crashed and bad.result.exit_status == status
        assert f"{status}: " in bad.result.message and "harness_parts.py" in bad.result.message
        assert good.result.exit_status == "Submitted" and not good.result.crashed
        assert made.status()[0].starts == 1


async def test_a_killed_host_loses_its_tenants_and_comes_back(tmp_path: Path, endpoint) -> None:
    async with pool(tmp_path) as made:
        endpoint.gate.clear()
        runs = [asyncio.create_task(made.run(attempt(f"r{n}", tmp_path, endpoint.url, child=1), 60)) for n in range(3)]
        await until(lambda: len(endpoint.asked) == 3)
        (old,) = pids(made)
        os.kill(old, signal.SIGKILL)
        for end in await asyncio.gather(*runs):
            assert end.cause is not None and end.cause.cause is CauseClass.HOST_LOST
        assert lifeline.session_members(old) == []
        endpoint.gate.set()
        again = await made.run(attempt("again", tmp_path, endpoint.url), 60)
        assert again.result.exit_status == "Submitted" and pids(made) != [old]


async def test_a_harness_that_cannot_be_loaded_is_explained(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="No module named 'the_agent'"):
        async with pool(tmp_path, "BrokenHarness", hosts=2):
            pass


async def test_hosts_that_keep_dying_give_every_run_a_cause(tmp_path: Path) -> None:
    async with pool(tmp_path, "DyingHarness") as made:
        ends = [await made.run(attempt(f"r{n}", tmp_path), 60) for n in range(QUICK.limit + 2)]
        causes = [end.cause.cause for end in ends if end.cause]
        assert causes == [CauseClass.HOST_LOST] * (QUICK.limit + 1) + [CauseClass.HARNESS]


async def test_a_run_ends_at_its_limit_and_a_tenant_that_notices_costs_nothing(tmp_path: Path, endpoint) -> None:
    async with pool(tmp_path) as made:
        endpoint.gate.clear()
        end = await made.run(attempt("slow", tmp_path, endpoint.url), 0.2)
        assert end.timed_out and end.cause is None
        endpoint.gate.set()  # as the gateway's seal does
        await until(lambda: made.status()[0].tenants == 0)
        assert not made.status()[0].condemned and made.status()[0].starts == 1


async def test_a_stuck_tenant_costs_its_host_and_not_the_run(tmp_path: Path, endpoint) -> None:
    async with pool(tmp_path, grace=0.1) as made:
        endpoint.gate.clear()
        (old,) = pids(made)
        healthy = asyncio.create_task(made.run(attempt("healthy", tmp_path, endpoint.url), 60))
        await until(lambda: len(endpoint.asked) == 1)
        assert (await made.run(attempt("stuck", tmp_path, sleep=1000), 0.1)).timed_out
        await until(lambda: pids(made) not in ([], [old]))  # another host has its place
        assert not healthy.done()
        endpoint.gate.set()
        assert (await healthy).result.exit_status == "Submitted"
        await until(lambda: not lifeline.session_members(old))
        assert (await made.run(attempt("next", tmp_path), 60)).result.exit_status == "Submitted"


async def test_close_ends_runs_that_work_or_wait(tmp_path: Path) -> None:
    async with pool(tmp_path, tenants=1) as made:
        runs = [asyncio.create_task(made.run(attempt(f"r{n}", tmp_path, sleep=1000), 60)) for n in range(2)]
        await until(lambda: made.status()[0].tenants == 1)
        (pid,) = pids(made)
    causes = [end.cause.cause for end in await asyncio.gather(*runs) if end.cause]
    assert sorted(causes) == [CauseClass.HARNESS, CauseClass.HOST_LOST]
    assert lifeline.session_members(pid) == []


OWNER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_pool
async def main():
    async with test_pool.pool(Path(sys.argv[1]), hosts=2) as made:
        runs = [asyncio.create_task(made.run(test_pool.attempt(f"r{n}", Path(sys.argv[1]), child=1, sleep=1000), 1000))
                for n in range(2)]
        await test_pool.until(lambda: sum(host.tenants for host in made.status()) == 2 and len(test_pool.pids(made)) == 2)
        print(*test_pool.pids(made), flush=True)
        await asyncio.gather(*runs)
asyncio.run(main())
"""


async def test_kill_9_of_the_pools_owner_leaves_no_host_and_nothing_it_started(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", OWNER, str(tmp_path), str(Path(__file__).parent)]
    owner = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    sessions = [int(word) for word in (await asyncio.to_thread(owner.stdout.readline)).split()]
    await until(lambda: sum(len(lifeline.session_members(session)) for session in sessions) == 4)  # two hosts, two children
    owner.kill()
    owner.communicate()
    await until(lambda: not any(lifeline.session_members(session) for session in sessions))


def test_messages_round_trip_and_a_damaged_one_is_shown(tmp_path: Path) -> None:
    order = Run(tenant=7, spec=attempt("r", tmp_path, note="two\nlines"))
    assert encode(order).count(b"\n") == 1 and decode_order(encode(order)) == order
    for report in (
        Ready(pid=1, seconds=2.0, cpu_seconds=1.5, rss_mb=80.0),
        Failed(message="no"),
        Done(tenant=7, result=HarnessResult(exit_status="Submitted")),
    ):
        assert decode_report(encode(report)) == report
    with pytest.raises(HarnessError, match="hello"):
        decode_report(b"hello\n")
    with pytest.raises(HarnessError, match="stop"):
        decode_order(msgspec.json.encode({"type": "stop"}))
