"""Messages between controller, launcher, keepers and clients."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.sandboxes import wire

MESSAGES: list[wire.Message] = [
    wire.BoxRequest(backend="process", sandbox_id="a", root="/r", workdir="/app", files=(("/a", "/b"),), memory_mb=1),
    wire.Ready(pid=1, workdir="/app", environment={"A": "ü"}, cgroups=("/x",)),
    wire.Stop(),
    wire.Exec(argv=(b"sh", b"-c", b"echo \xff\n"), cwd="/app", environment={}),
    wire.Exited(code=-9),
    wire.Finish(kill=True),
    wire.Put(target="/tests"),
    wire.Read(path="/x", limit=5),
    wire.Content(data=b"\0\xff"),
    wire.Content(data=None),
    wire.KillAll(),
    wire.Done(),
    wire.Failed(message="m", next_step="n"),
]


@given(st.lists(st.sampled_from(MESSAGES), max_size=5), st.integers(1, 50))
def test_messages_round_trip_in_any_split(messages: list[wire.Message], size: int) -> None:
    data = b"".join(wire.encode(message) for message in messages)
    assembler = wire.Assembler()
    found = []
    for start in range(0, len(data), size):
        assembler.feed(data[start : start + size], [])
        while (received := assembler.take()) is not None:
            found.append(received[0])
    assembler.end()
    assert found == messages


def test_an_end_in_the_middle_is_an_error_and_a_clean_end_is_none() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = wire.Channel(ours)
        theirs.sendall(wire.encode(wire.Done()) + wire.encode(wire.Stop())[:-1])
        assert channel.receive() == (wire.Done(), [])
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError):
            channel.receive()
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        assert wire.Channel(ours).receive() is None


def test_descriptors_travel_with_their_message_and_are_close_on_exec() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, Path(os.devnull).open("rb") as file:
        wire.Channel(theirs).send(wire.Put(target="/x"), (file.fileno(),))
        received = wire.Channel(ours).receive()
    assert received is not None
    message, (descriptor,) = received
    assert message == wire.Put(target="/x")
    assert os.fstat(descriptor).st_rdev == Path(os.devnull).stat().st_rdev and not os.get_inheritable(descriptor)
    wire.close([descriptor])


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\1\x80", b"\0\0\0\x0b\x81\xa4type\xa4None"])
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    assembler = wire.Assembler()
    assembler.feed(data, [])
    with pytest.raises(ConnectionAbortedError):
        assembler.take()
