"""Engines behind the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from gateway_world import until

from whippletree.engines.config import Faults
from whippletree.engines.scripted import ScriptedEngine
from whippletree.errors import EngineError, EngineUnavailable
from whippletree.gateway.replicas import Replica, Replicas
from whippletree.protocols import ReplicaView, RoutedCall
from whippletree.types import EngineReport, EngineStatus

CALL = RoutedCall(rollout_id="r0")


class Moody(ScriptedEngine):
    """An engine whose process comes and goes."""

    up = False
    checks = 0

    async def status(self) -> EngineStatus:
        self.checks += 1
        if not self.up:
            raise EngineUnavailable(f"{self.name}: connection refused", "start it")
        return await super().status()


def moody(name: str = "moody", *, up: bool = False) -> Moody:
    engine = Moody(name=name, context=55)
    engine.up = up
    return engine


@asynccontextmanager
async def replicas_of(*engines: ScriptedEngine, **settings: Any) -> AsyncIterator[Replicas]:
    replicas = Replicas(engines, settings.pop("reports", {}), **settings)
    try:
        yield replicas
    finally:
        await replicas.close()


async def fail(replicas: Replicas, retry_after: float = 0.0) -> None:
    """One call that its replica does not answer."""
    with pytest.raises(EngineUnavailable):
        async with replicas.chosen(CALL):
            raise EngineUnavailable("gone", "retry", retry_after=retry_after)


def ready(replica: Replica) -> None:
    """Let its delay pass."""
    from msgspec.structs import replace

    replica.breaker = replace(replica.breaker, until=0.0)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    """The moment at which the replicas' clock stands still, in seconds."""
    monkeypatch.setattr("whippletree.gateway.replicas.time", SimpleNamespace(monotonic=lambda: 1000.0))
    return 1000.0


# --- registering ---


async def test_an_engine_is_used_only_once_it_has_said_its_context_length() -> None:
    absent, present = moody("absent"), ScriptedEngine(context=77)
    async with replicas_of(absent, present) as replicas:
        with pytest.raises(EngineUnavailable, match="connection refused"):
            async with replicas.chosen(RoutedCall(rollout_id="r0", preferred=0)):
                pytest.fail("used before it was registered")
        async with replicas.chosen(CALL) as replica:
            assert (replica.place, replica.context_length) == (1, 77)
        assert replicas.context_length == 77
        assert [replica.health().answering for replica in replicas.all] == [False, True]


async def test_started_replicas_are_graded_in_the_background_and_shown() -> None:
    late, broken = moody("late"), ScriptedEngine(name="broken", faults=Faults(no_logprobs=True))
    async with replicas_of(ScriptedEngine(), late, broken) as replicas:
        replicas.start()
        assert replicas.all[0].health().report is None  # nothing waits for it
        await until(lambda: replicas.all[0].report and replicas.all[2].report)
        health = [replica.health() for replica in replicas.all]
        assert [one.grade for one in health] == ["tokens", "", "text"]
        assert "connection refused" in replicas.all[1].last_error
        late.up = True
        await until(lambda: replicas.all[1].report)
        report = replicas.all[1].health().report
        assert report is not None
        assert (report.grade, report.logprobs, report.context_length) == ("tokens", "processed", 55)
        assert replicas.all[2].logprob_source == "none"


async def test_a_call_that_comes_first_waits_for_the_probe_of_a_started_replica() -> None:
    async with replicas_of(ScriptedEngine(faults=Faults(token_seconds=0.001))) as replicas:
        replicas.start()
        async with replicas.chosen(CALL) as replica:
            assert replica.grade == "tokens"


async def test_without_a_start_only_a_chat_engine_is_graded_before_its_first_call() -> None:
    class Chat(ScriptedEngine):
        """Nothing but chat."""

        chat_only = True

        async def probe(self) -> EngineReport:
            return EngineReport(grade="text", logprobs="none")

    async with replicas_of(Chat(name="chat"), ScriptedEngine()) as replicas:
        async with replicas.chosen(RoutedCall(rollout_id="r0", preferred=0)) as replica:
            assert replica.grade == "text"
        async with replicas.chosen(RoutedCall(rollout_id="r0", preferred=1)) as replica:
            assert (replica.grade, replica.logprob_source) == ("", "processed")


async def test_a_probe_that_fails_is_a_grade_and_one_that_finds_nobody_is_tried_again() -> None:
    class Odd(ScriptedEngine):
        """Its probe breaks, once for good and once for now."""

        probes: Sequence[EngineError] = (EngineUnavailable("away", "retry"), EngineError("what?", "look"))

        async def probe(self) -> EngineReport:
            self.probes, (error, *_) = self.probes[1:], self.probes
            raise error

    async with replicas_of(Odd()) as replicas:
        replicas.start()
        await until(lambda: replicas.all[0].report)
        assert (replicas.all[0].grade, replicas.all[0].logprob_source) == ("none", "none")


async def test_what_a_probe_found_is_recorded_with_the_calls(make_world: Any) -> None:
    replicas = Replicas([ScriptedEngine()], {"scripted": EngineReport(grade="tokens", logprobs="raw")})
    assert (replicas.all[0].logprob_source, replicas.all[0].health().grade) == ("raw", "tokens")
    async with make_world(lambda prompt: "hi") as world:
        await world.chat([{"role": "user", "content": "go"}])
        assert world.calls()[0].logprob_source == "processed"


# --- failing ---


async def test_a_failed_replica_is_left_alone_longer_and_longer_but_at_most_a_second(now: float) -> None:
    async with replicas_of(ScriptedEngine()) as replicas:
        pauses = []
        for _ in range(4):
            ready(replicas.all[0])
            await fail(replicas)
            pauses.append(replicas.all[0].down_until - now)
        assert pauses[0] < pauses[1] < pauses[2] < pauses[3] <= 1.0
        with pytest.raises(EngineUnavailable, match="no engine answers: scripted: gone"):
            async with replicas.chosen(CALL):
                pytest.fail("a replica that is down was chosen")


async def test_what_a_busy_engine_asks_for_is_kept(now: float) -> None:
    async with replicas_of(ScriptedEngine()) as replicas:
        await fail(replicas, retry_after=30.0)
        assert replicas.all[0].down_until - now == 30.0


@pytest.mark.usefixtures("now")
async def test_another_replica_takes_over_and_the_rollout_comes_back_to_neither_that_is_down() -> None:
    async with replicas_of(ScriptedEngine(name="a"), ScriptedEngine(name="b")) as replicas:
        async with replicas.chosen(RoutedCall(rollout_id="r0", preferred=0)) as replica:
            assert replica.place == 0
        with pytest.raises(EngineUnavailable):
            async with replicas.chosen(RoutedCall(rollout_id="r0", preferred=0)):
                raise EngineUnavailable("gone", "retry")
        async with replicas.chosen(RoutedCall(rollout_id="r0", preferred=0)) as replica:
            assert replica.place == 1


async def test_an_open_circuit_is_checked_in_the_background_and_one_trial_closes_it() -> None:
    engine = moody(up=True)
    async with replicas_of(engine) as replicas:
        replica = replicas.all[0]
        for _ in range(5):
            ready(replica)
            await fail(replicas)
        assert (replica.health().circuit, replica.view().open) == ("open", False)
        engine.up, before = False, engine.checks
        await until(lambda: engine.checks > before)
        assert replica.health().circuit == "open"
        engine.up = True
        await until(lambda: replica.health().circuit == "half_open")
        async with replicas.chosen(CALL) as trial:
            with pytest.raises(EngineUnavailable):  # one at a time
                async with replicas.chosen(CALL):
                    pytest.fail("a second trial")
            trial.answered(3)
            assert (replica.health().circuit, replica.health().policy_version) == ("closed", 3)
        async with replicas.chosen(CALL):
            pass


async def test_a_cancelled_trial_leaves_room_for_the_next_and_a_failed_one_opens_again() -> None:
    async with replicas_of(moody(up=True)) as replicas:
        replica = replicas.all[0]
        for _ in range(5):
            ready(replica)
            await fail(replicas)
        await until(lambda: replica.health().circuit == "half_open")
        with pytest.raises(asyncio.CancelledError):
            async with replicas.chosen(CALL):
                raise asyncio.CancelledError
        await fail(replicas)
        assert replica.health().circuit == "open"
        assert replica.breaker.openings == 2


@pytest.mark.usefixtures("now")
async def test_a_router_may_be_given_and_cannot_send_a_call_to_a_replica_that_is_down() -> None:
    class Last:
        """The last replica, whatever is wrong with it."""

        def choose(self, replicas: Sequence[ReplicaView], call: RoutedCall, now: float) -> int | None:
            assert (call.prompt_tokens, call.shared_tokens) == (9, 4)
            return replicas[-1].place + (call.rollout_id == "lost")

    call = RoutedCall(rollout_id="r0", prompt_tokens=9, shared_tokens=4)
    async with replicas_of(ScriptedEngine(name="a"), ScriptedEngine(name="b"), router=Last()) as replicas:
        async with replicas.chosen(call) as replica:
            assert replica.place == 1
        with pytest.raises(EngineUnavailable):
            async with replicas.chosen(call):
                raise EngineUnavailable("gone", "retry")
        for sent in (call, RoutedCall(rollout_id="lost", prompt_tokens=9, shared_tokens=4)):
            with pytest.raises(EngineUnavailable, match="no engine answers"):
                async with replicas.chosen(sent):
                    pytest.fail("sent to a replica that may not be asked")
