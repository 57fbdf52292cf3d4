"""Cases of an event loop that stands still: the gateway's share. The controller's is in test_cases_attempts.py."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_world import SECRET

from whippletree.gateway import model_routes
from whippletree.gateway.keys import mint
from whippletree.gateway.peers import add_statuses

SLOW_ROUTER = """
import threading
from whippletree.gateway.routing import StickyRouter

STOP = threading.Event()


class Slow(StickyRouter):
    def choose(self, replicas, call, now):
        STOP.wait(30)  # blocking user code on the loop
        return super().choose(replicas, call, now)
"""


async def test_D13_blocking_user_code_in_the_gateway_is_named_and_counted(
    make_world: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A router of the user's blocks the loop until the watch has said so: it is told while it lasts, and what is waited for."""
    (tmp_path / "slow_router.py").write_text(SLOW_ROUTER)
    monkeypatch.syspath_prepend(str(tmp_path))
    import slow_router

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "slow_router" in record.getMessage():
                slow_router.STOP.set()

    log = logging.getLogger("whippletree.watchdog")
    handler = Told()
    log.addHandler(handler)
    try:
        async with make_world(["fine"], router="slow_router:Slow", stall_seconds=0.3) as world:
            status, _ = await world.chat([{"role": "user", "content": "?"}])
            await asyncio.sleep(0.3)
            counts = await asyncio.to_thread(world.control.status)
    finally:
        log.removeHandler(handler)
    assert status == 200 and slow_router.STOP.is_set()
    assert counts.loop_stalls >= 1
    assert counts.loop_lag_worst >= counts.loop_lag >= 0.1
    told = [record.message for record in caplog.records if "slow_router" in record.message]
    assert "the event loop of gateway process" in told[0] and "has stood still for 0.3 s" in told[0]
    assert "STOP.wait(30)  # blocking user code on the loop" in told[0]


def huge(megabytes: int) -> bytes:
    """A small request with so much JSON beside it."""
    more = [[number, str(number), {"a": [number]}] for number in range(megabytes * 1_000_000 // 30)]
    return json.dumps({"model": "policy", "messages": [{"role": "user", "content": "?"}], "metadata": more}).encode()


@pytest.mark.parametrize("megabytes", [4, pytest.param(20, marks=pytest.mark.slow)])
async def test_D13_huge_bodies_of_many_clients_leave_the_gateway_answering(
    make_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, megabytes: int
) -> None:
    body = await asyncio.to_thread(huge, megabytes)
    assert len(body) > megabytes * 900_000
    readers: list[tuple[int, int]] = []
    real = model_routes._incoming

    def noting(dialect: Any, body: bytes, *given: Any, **named: Any) -> Any:
        readers.append((len(body), threading.get_ident()))
        return real(dialect, body, *given, **named)

    monkeypatch.setattr(model_routes, "_incoming", noting)
    async with make_world(lambda prompt: "fine", stall_seconds=60.0) as world:

        async def post(number: int) -> int:
            key = {"Authorization": f"Bearer {mint(SECRET, f'r{number % 3}', 1)}", "X-Try": str(number)}
            async with world.http.post(world.url + "/v1/chat/completions", data=body, headers=key) as response:
                await response.read()
                return int(response.status)

        asked = [asyncio.create_task(post(number)) for number in range(8)]
        answers = 0
        while not all(task.done() for task in asked):
            async with world.http.get(world.url + "/healthz") as response:
                answers += response.status == 200
            counts = await asyncio.wait_for(asyncio.to_thread(world.control.status), 60.0)
        assert [task.result() for task in asked] == [200] * 8
        assert answers > 0 and counts.loop_stalls == 0
        assert (await world.chat([{"role": "user", "content": "small"}]))[0] == 200
    here = threading.get_ident()
    assert len(readers) >= 9
    assert {ident == here for size, ident in readers if size > model_routes.HUGE_BODY} == {False}
    assert {ident == here for size, ident in readers if size <= model_routes.HUGE_BODY} == {True}


async def test_D13_the_lag_of_several_workers_is_that_of_the_worst(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        one = await asyncio.to_thread(world.control.status)
    two = msgspec.structs.replace(one, loop_lag=3.0, loop_lag_worst=9.0, loop_stalls=2)
    three = msgspec.structs.replace(one, loop_lag=4.0, loop_lag_worst=4.0, loop_stalls=1)
    total = add_statuses([two, three])
    assert (total.loop_lag, total.loop_lag_worst, total.loop_stalls) == (4.0, 9.0, 3)
