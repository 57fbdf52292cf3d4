"""A blocked event loop is noticed while it is blocked."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from whippletree.watchdog import LoopWatch, Window


def blocking_reward_function(until: threading.Event) -> None:
    until.wait(5)


def watchdogs() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "watchdog"}


async def test_a_blocked_loop_is_reported_with_the_code_that_it_is_in(caplog: pytest.LogCaptureFixture) -> None:
    reported = threading.Event()

    class Released(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "blocking_reward_function" in record.getMessage():
                reported.set()

    handler = Released()
    logging.getLogger("whippletree.watchdog").addHandler(handler)
    watch = LoopWatch("the loop of this test", limit=0.2)
    try:
        with caplog.at_level(logging.ERROR):
            async with watch.watching():
                await asyncio.sleep(0.05)
                for _ in range(6):  # a stall of the machine before it may have been what was reported
                    blocking_reward_function(reported)  # goes on once it was reported
                    await asyncio.sleep(0.3)
                    if reported.is_set():
                        break
    finally:
        logging.getLogger("whippletree.watchdog").removeHandler(handler)
    assert reported.is_set() and watch.stalls >= 1 and watch.worst >= 0.05
    (said,) = [record.message for record in caplog.records if "blocking_reward_function" in record.message]
    assert "the loop of this test has stood still for 0.2 s" in said and "until.wait(5)" in said


async def test_a_loop_that_waits_is_not_reported_and_nothing_is_left() -> None:
    watch = LoopWatch("idle", limit=30.0)
    before = watchdogs()
    async with watch.watching():
        await asyncio.sleep(0.3)
        assert len(watchdogs() - before) == 1
    assert watch.stalls == 0 and watchdogs() <= before


async def test_it_ends_with_what_the_body_raises() -> None:
    with pytest.raises(ValueError, match="mine"):
        async with LoopWatch("x").watching():
            raise ValueError("mine")


async def test_a_second_stall_is_reported_again() -> None:
    watch = LoopWatch("twice", limit=0.1)
    async with watch.watching():
        for wanted in (1, 2):
            limit = time.monotonic() + 20.0
            while watch.stalls < wanted and time.monotonic() < limit:
                time.sleep(0.01)
            await asyncio.sleep(0.25)
    assert watch.stalls >= 2


def test_a_window_forgets_what_is_long_over() -> None:
    window = Window(10.0)
    assert window.most(5.0) == 0.0
    window.add(12.0, 3.0)
    window.add(13.0, 1.0)
    assert [window.most(now) for now in (19.0, 25.0, 29.9, 30.0)] == [3.0, 3.0, 3.0, 0.0]
    window.add(31.0, 2.0)
    assert window.most(55.0) == 0.0  # several windows without a value


async def test_a_stall_is_seen_while_it_lasts_and_where_other_threads_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[float] = []
    there, told = threading.Event(), threading.Event()

    def busy_worker() -> None:
        there.set()
        told.wait(30)
        seen.extend((watch.lag, watch.worst))

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "held up" in record.getMessage():
                told.set()

    handler = Heard()
    logging.getLogger("whippletree.watchdog").addHandler(handler)
    watch = LoopWatch("held up", limit=0.3)
    thread = threading.Thread(target=busy_worker, name="culprit")
    thread.start()  # before the watch: what is reported is then this, whenever the machine stalls
    assert there.wait(30)
    try:
        async with watch.watching():
            thread.join()
            await asyncio.sleep(0.15)
    finally:
        logging.getLogger("whippletree.watchdog").removeHandler(handler)
    lag, worst = seen
    assert worst >= lag >= 0.1 and watch.worst >= watch.lag >= 0.1
    (said,) = [record.message for record in caplog.records if "meanwhile thread culprit is in" in record.message]
    assert "held up has stood still" in said and "told.wait(30)" in said
