"""Pipes that are read into nothing, and how long a client waits for leftovers."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator

import pytest

from whippletree.protocols import SandboxHandle
from whippletree.sandboxes import client, drain, wire


@pytest.fixture
def held() -> Iterator[drain.Drain]:
    made = drain.Drain()
    yield made
    made.leave()


def turn_until(held: drain.Drain, count: int) -> None:
    """Let it work until it holds that many pipes."""
    while len(held.held) != count:
        assert select.select([held.fileno()], [], [], 20)[0], "nothing more came"
        held.turn()


def test_a_pipe_is_read_to_its_end_and_closed(held: drain.Drain) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    out, into = os.pipe()
    held.hand_in([out])
    turn_until(held, 1)
    os.set_blocking(into, False)
    written = 0
    while written < 3_000_000:  # far more than a pipe holds
        try:
            written += os.write(into, b"x" * 65536)
        except BlockingIOError:
            held.turn()
    os.close(into)
    turn_until(held, 0)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_there_is_a_most_of_them(held: drain.Drain) -> None:
    pipes = [os.pipe() for _ in range(drain.MOST + 1)]
    for out, _ in pipes:
        held.hand_in([out])
        held.turn()
    assert len(held.held) == drain.MOST
    with pytest.raises(BrokenPipeError):
        os.write(pipes[-1][1], b"x")
    for _, into in pipes:
        os.close(into)
    turn_until(held, 0)


@pytest.fixture
def run() -> Iterator[tuple[client.Exchange, int, wire.Channel]]:
    """An exchange, the other end of its output, and the keeper's side."""
    out, into = os.pipe()
    os.set_blocking(out, False)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    handle = SandboxHandle(backend="process", sandbox_id="s", pid=1, root="/nowhere", workdir="/app", environment={})
    with ours, theirs:
        yield client.Exchange(handle, ours, out, 1000, None), into, wire.Channel(theirs)
    os.close(out)
    os.close(into)


def test_leftovers_get_a_short_time_and_never_more_than_the_time_limit(
    run: tuple[client.Exchange, int, wire.Channel],
) -> None:
    exchange, into, keeper = run
    limit = time.monotonic() + 1000
    assert exchange.until(limit) == limit and not exchange.left_running
    keeper.send(wire.Exited(code=0))
    exchange.read_messages()
    assert exchange.left_running and not exchange.finished
    quiet = exchange.until(limit)
    assert quiet <= time.monotonic() + client.QUIET_SECONDS
    os.write(into, b"x")
    exchange.read_output()
    assert quiet <= exchange.until(limit) <= time.monotonic() + client.LEFT_SECONDS
    assert exchange.until(5.0) == 5.0


def test_the_end_of_the_output_is_handed_over_only_where_something_holds_it(
    run: tuple[client.Exchange, int, wire.Channel],
) -> None:
    exchange, _, keeper = run
    exchange.tell(kill=True)
    received = keeper.receive()
    assert received == (wire.Finish(kill=True), [])
    keeper.send(wire.Exited(code=0))
    exchange.read_messages()
    exchange.tell(kill=False)
    received = keeper.receive()
    assert received is not None and received[0] == wire.Finish() and len(received[1]) == 1
    os.close(received[1][0])
    assert exchange.result().left_running
