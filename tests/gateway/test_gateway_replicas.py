"""Engines behind the gateway."""

import time

import pytest

from whippletree.engines.scripted import ScriptedEngine
from whippletree.errors import EngineUnavailable
from whippletree.gateway.replicas import Replicas
from whippletree.types import EngineReport


class Absent(ScriptedEngine):
    """An engine whose process is not up yet."""

    name = "absent"

    async def status(self):
        raise EngineUnavailable("absent: connection refused", "start it")


async def test_an_engine_is_used_only_once_it_has_said_its_context_length():
    replicas = Replicas([Absent(), ScriptedEngine(context=77)], {})
    with pytest.raises(EngineUnavailable, match="connection refused"):
        async with replicas.chosen(-1):
            pytest.fail("used before it was registered")
    async with replicas.chosen(-1) as replica:
        assert (replica.place, replica.context_length) == (1, 77)
    assert replicas.context_length == 77
    assert [replica.health().answering for replica in replicas.all] == [False, True]


async def test_a_failed_replica_is_left_alone_longer_and_longer_but_at_most_a_second():
    replicas = Replicas([Absent()], {})
    pauses = []
    for _ in range(8):
        replicas.all[0].down_until = 0.0
        with pytest.raises(EngineUnavailable):
            async with replicas.chosen(-1):
                pytest.fail("used before it was registered")
        pauses.append(replicas.all[0].down_until - time.monotonic())
    assert pauses[0] < pauses[2] < pauses[7] <= 1.0
    with pytest.raises(EngineUnavailable, match="no engine answers: absent: absent: connection refused"):
        async with replicas.chosen(0):
            pytest.fail("a replica that is down was chosen")


async def test_what_a_probe_found_is_recorded_with_the_calls(make_world):
    replicas = Replicas([ScriptedEngine()], {"scripted": EngineReport(grade="tokens", logprobs="raw")})
    assert (replicas.all[0].logprob_source, replicas.all[0].health().grade) == ("raw", "tokens")
    async with make_world(lambda prompt: "hi") as world:
        await world.chat([{"role": "user", "content": "go"}])
        assert world.calls()[0].logprob_source == "processed"
