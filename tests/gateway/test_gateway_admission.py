"""Admission: the pure state machine, and the gate."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.gateway.admission import Admission, Gate

STEPS = st.lists(st.sampled_from(["arrive", "leave", "forget", "hold", "release"]), max_size=60)


@given(STEPS, st.integers(0, 3))
def test_nobody_is_admitted_while_held_and_the_limit_is_kept(steps, limit):
    state = Admission(limit)
    order, forgotten = [], set()
    for step in steps:
        if step == "arrive":
            state.arrive()
        elif step == "leave" and state.in_flight:
            state.leave(min(state.in_flight))
        elif step == "forget" and state.waiting:
            ticket = next(iter(state.waiting))
            state.leave(ticket)
            forgotten.add(ticket)
        elif step in ("hold", "release"):
            state.holding = step == "hold"
        admitted = state.admit()
        assert not (state.holding and admitted)
        assert not limit or len(state.in_flight) <= limit
        order += admitted
    assert order == sorted(order)
    assert not forgotten & set(order)


async def test_a_hold_waits_for_those_in_flight_and_a_release_admits_in_order():
    gate = Gate(0, hold_limit=60.0)
    order, leave = [], asyncio.Event()

    async def call(name, hold_on):
        async with gate.admitted():
            order.append(name)
            if hold_on:
                await leave.wait()

    first = asyncio.create_task(call("a", True))
    await asyncio.sleep(0)
    held = asyncio.create_task(gate.hold(60.0))
    await asyncio.sleep(0)
    others = [asyncio.create_task(call(name, False)) for name in "bcd"]
    await asyncio.sleep(0)
    others[1].cancel()  # its harness goes away
    assert not held.done()
    assert order == ["a"]
    leave.set()
    assert await held == 0
    await first
    assert order == ["a"]
    gate.release()
    await asyncio.gather(*others, return_exceptions=True)
    assert order == ["a", "b", "d"]
    assert not gate.state.in_flight
    assert not gate.state.waiting


async def test_a_hold_that_is_not_drained_in_time_says_how_many_are_left():
    gate = Gate(0, hold_limit=60.0)
    async with gate.admitted():
        assert await gate.hold(0.01) == 1
        gate.release()


async def test_a_hold_that_nobody_releases_ends_by_itself():
    gate = Gate(0, hold_limit=0.02)
    assert await gate.hold(1.0) == 0
    async with gate.admitted():
        assert not gate.state.holding
    assert gate.holds_expired == 1


async def test_a_call_over_the_limit_waits_for_another_to_leave():
    gate = Gate(1, hold_limit=60.0)
    async with gate.admitted():
        second = asyncio.create_task(gate.admitted().__aenter__())
        await asyncio.sleep(0)
        assert not second.done()
    assert await second


async def test_a_release_frees_whoever_still_waits_for_the_drain():
    gate = Gate(0, hold_limit=60.0)
    async with gate.admitted():
        held = asyncio.create_task(gate.hold(60.0))
        await asyncio.sleep(0)
        gate.release()
        assert await held == 1
        with pytest.raises(asyncio.TimeoutError):  # a later hold waits again
            await asyncio.wait_for(gate.hold(60.0), 0.01)


async def test_a_hold_that_aborts_sends_those_in_flight_back_in_line():
    gate = Gate(0, hold_limit=60.0)
    rounds = []

    async def call(name):
        while True:
            async with gate.admitted() as stay:
                interrupted = asyncio.Event()
                stay.interrupt = interrupted.set
                rounds.append(name)
                if rounds.count(name) == 2:
                    return
                await interrupted.wait()

    calls = [asyncio.create_task(call(name)) for name in "ab"]
    await asyncio.sleep(0)
    assert await gate.hold(0.0, abort=True) == 0
    assert len(gate.state.waiting) == 2
    gate.release()
    await asyncio.gather(*calls)
    assert sorted(rounds) == ["a", "a", "b", "b"]


async def test_what_cannot_be_interrupted_is_waited_for_and_counted(monkeypatch):
    monkeypatch.setattr("whippletree.gateway.admission.ABORT_LIMIT", 0.1)
    gate = Gate(0, hold_limit=60.0)
    async with gate.admitted():
        assert await gate.hold(0.0, abort=True) == 1
