"""Sampling across failures: unavailable engines, broken streams, another replica, nonsense from an engine."""

import asyncio
import time
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from gateway_world import SECRET, user

from whippletree.engines.scripted import Faults, ScriptedEngine
from whippletree.errors import AlignmentError, EngineUnavailable
from whippletree.gateway.generation import effective_sampling
from whippletree.gateway.keys import mint
from whippletree.gateway.routing import StickyRouter
from whippletree.gateway.sources import Sampled, check_alignment
from whippletree.protocols import ReplicaView, RoutedCall
from whippletree.types import RequestedSampling, Sampling, TokenChunk, VersionSpan, WeightUpdate


def engine(**settings):
    return ScriptedEngine(None, vocabulary=420, context=4096, **settings)


async def agrees_with_scores(world, call, scorer):
    """Every sampled id has the logprob that the engine gives it after the whole prompt and all earlier ids."""
    payload = world.store.payload(call)
    prompt = world.prompt_ids(call)
    scores = await scorer.score([*prompt, *payload.sampled_ids.tolist()])
    return np.allclose(payload.logprobs, scores[len(prompt) - 1 :], atol=1e-5)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_whose_engine_dies_again_and_again_is_one_whole_reply(make_world, stream):
    sampling = Sampling(max_tokens=25, seed=3)
    async with make_world(None, engines=[engine(faults=Faults(reset_after=7))], sampling=sampling) as world:
        if stream:
            key = mint(SECRET, "r0", 1)
            body = {"messages": [user("go")], "stream": True, "stream_options": {"include_usage": True}}
            async with world.http.post(f"{world.url}/r/{key}/v1/chat/completions", json=body) as response:
                text = await response.text()
            assert text.endswith("data: [DONE]\n\n")
            assert "error" not in text
        else:
            assert (await world.chat([user("go")]))[0] == 200
        (call,) = world.calls()
        assert call.sampled_tokens == 25 or call.finish_reason == "stop"
        assert call.sampled_tokens > 7
        assert await agrees_with_scores(world, call, world.engines[0])
        assert call.versions == (VersionSpan(start=0, policy_version=0),)
        assert (await world.control.status_async()).resumed >= 1


async def test_an_engine_that_is_not_there_is_waited_for(make_world):
    async with make_world(lambda prompt: "hello", faults=Faults(unavailable=3)) as world:
        status, reply = await world.chat([user("go")])
        assert (status, reply["choices"][0]["message"]["content"]) == (200, "hello")
        health = (await world.control.status_async()).engines[0]
        assert (health.answering, health.last_error) == (True, "")


async def test_another_replica_goes_on_where_the_first_broke(make_world):
    broken = engine(faults=Faults(reset_after=5))
    whole = engine()
    await whole.update_weights(WeightUpdate(directory="", policy_version=4))
    first = StickyRouter().choose([ReplicaView(place=0), ReplicaView(place=1)], RoutedCall(rollout_id="r0"), 0.0)
    engines = [broken, whole] if first == 0 else [whole, broken]
    async with make_world(None, engines=engines, sampling=Sampling(max_tokens=20, seed=3)) as world:
        status, reply = await world.chat([user("go")])
        (call,) = world.calls()
        assert status == 200
        assert call.versions == (VersionSpan(start=0, policy_version=0), VersionSpan(start=5, policy_version=4))
        assert await agrees_with_scores(world, call, whole)
        assert reply["usage"]["completion_tokens"] == call.sampled_tokens


async def test_when_no_engine_answers_for_too_long_the_harness_is_told_to_come_back(make_world):
    async with make_world(None, faults=Faults(unavailable=10**6), engine_wait_limit=0.3) as world:
        headers = {"Authorization": "Bearer " + mint(SECRET, "r0", 1)}
        body = {"messages": [user("go")]}
        async with world.http.post(world.url + "/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) > 0
            assert (await response.json())["error"]["code"] == "engine_unavailable"
        health = (await world.control.status_async()).engines[0]
        assert not health.answering
        assert "unavailable" in health.last_error


async def test_a_seal_says_why_the_last_call_got_no_answer(make_world):
    async with make_world(lambda prompt: "hello", engine_wait_limit=0.3) as world:
        assert (await world.chat([user("one")]))[0] == 200
        world.engines[0].faults = Faults(unavailable=10**6)
        assert (await world.chat([user("two")]))[0] == 503
        report = await world.control.seal_async("r0", 1)
        assert report.calls == 1 and "unavailable" in report.unanswered


@pytest.mark.parametrize("back", [True, False])
async def test_a_call_that_waits_for_an_engine_when_its_attempt_is_sealed_is_told(make_world, back):
    async with make_world(lambda prompt: "hello", faults=Faults(unavailable=10**6)) as world:
        waiting = asyncio.create_task(world.chat([user("go")]))
        while not (await world.control.status_async()).engines[0].last_error:
            await asyncio.sleep(0.01)
        if back:
            world.engines[0].faults = Faults()
            assert (await waiting)[0] == 200
        report = await world.control.seal_async("r0", 1, limit=0.05)
        assert bool(report.unanswered) == (not back) and report.calls == back
        waiting.cancel()


async def test_time_spent_held_does_not_count_as_waiting_for_an_engine(make_world, monkeypatch):
    ahead = 0.0
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + ahead)
    monkeypatch.setattr("whippletree.gateway.generation.time", clock)
    async with make_world(lambda prompt: "hello", faults=Faults(unavailable=2), engine_wait_limit=60.0) as world:
        await world.control.hold_async()
        pending = asyncio.create_task(world.chat([user("go")]))
        while (await world.control.status_async()).waiting != 1:
            await asyncio.sleep(0.01)
        ahead = 1000.0
        await world.control.release_async()
        assert (await pending)[0] == 200


async def test_a_silent_engine_counts_as_not_answering(make_world):
    silent = engine(faults=Faults(first_token_seconds=60.0))
    async with make_world(
        None, engines=[silent, engine()], engine_silence_limit=0.15, sampling=Sampling(max_tokens=5, seed=3)
    ) as world:
        assert (await world.chat([user("go")]))[0] == 200
        assert (await silent.status()).running == 0


async def test_a_turn_whose_engine_died_after_its_last_token_is_at_its_end(make_world, renderer):
    class DiesLast(ScriptedEngine):
        async def generate(self, request):
            asked.append(request)
            async for chunk in super().generate(request):
                yield msgspec.structs.replace(chunk, finish_reason=None)
            raise EngineUnavailable("gone before it said that this was all")

    asked = []
    answer = renderer.codec.encode("hello<|im_end|>")
    dying = DiesLast(lambda prompt: answer, vocabulary=420, context=4096)
    async with make_world(engines=[dying]) as world:
        _, reply = await world.chat([user("go")])
        assert (reply["choices"][0]["message"]["content"], reply["choices"][0]["finish_reason"]) == ("hello", "stop")
        _, reply = await world.chat([user("go")], max_tokens=2)
        assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (2, "length")
        assert len(asked) == 2


@pytest.mark.parametrize("faults", [Faults(no_logprobs=True), Faults(drop_ids=True)])
async def test_ids_and_logprobs_that_do_not_line_up_are_refused_and_never_recorded(make_world, faults):
    async with make_world(None, faults=faults) as world:
        status, body = await world.chat([user("go")])
        assert (status, body["error"]["code"]) == (502, "engine_error")
        assert body["error"]["message"].startswith("call c-")
        assert world.calls() == []


async def test_an_engine_that_breaks_after_tokens_leaves_a_record_with_the_cause(make_world):
    class Breaks(ScriptedEngine):
        async def generate(self, request):
            async for chunk in super().generate(request):
                yield chunk
                if chunk.token_ids:
                    yield TokenChunk(token_ids=[1], logprobs=[], policy_version=0)

    async with make_world(None, engines=[Breaks(None, vocabulary=420, context=4096)]) as world:
        assert (await world.chat([user("go")]))[0] == 502
        (call,) = world.calls()
        assert (call.finish_reason, call.sampled_tokens, call.delivered) == ("error", 3, False)
        assert call.error.startswith(f"call {call.call_id}: the engine sent 1 ids with 0 logprobs")
        assert (await world.chat([user("go")]))[0] == 502  # nothing is replayed or gone on with
        assert len(world.calls()) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_another_kind_is_a_500_in_the_dialects_form(make_world, caplog, stream):
    class Faulty(ScriptedEngine):
        async def generate(self, request):
            async for chunk in super().generate(request):
                yield chunk
                raise ZeroDivisionError("a mistake of ours")

    async with make_world(None, engines=[Faulty(None, vocabulary=420, context=4096)]) as world:
        headers = {"Authorization": "Bearer " + mint(SECRET, "r0", 1)}
        body = {"messages": [user("go")], "stream": stream}
        async with world.http.post(world.url + "/v1/chat/completions", json=body, headers=headers) as response:
            text = await response.text()
        assert '"code":"internal_error"' in text
        assert "[DONE]" not in text
        assert "a mistake of ours" not in text
        assert "ZeroDivisionError: a mistake of ours" in caplog.text
        assert world.calls()[0].finish_reason == "error"


def test_a_logprob_that_is_not_finite_is_refused():
    for value in (float("nan"), float("-inf")):
        with pytest.raises(AlignmentError, match="call c-1"):
            check_alignment([1], [value], "c-1")


def test_the_smallest_limit_wins_and_seeds_differ_between_turns():
    spec = Sampling(max_tokens=50, seed=7)
    assert effective_sampling(spec, RequestedSampling(), 0, 100).max_tokens == 50
    assert effective_sampling(spec, RequestedSampling(max_tokens=10), 0, 100).max_tokens == 10
    assert effective_sampling(spec, RequestedSampling(max_tokens=10), 0, 4).max_tokens == 4
    seeds = [effective_sampling(spec, RequestedSampling(), place, 9).seed for place in range(50)]
    assert len(set(seeds)) == 50
    assert effective_sampling(Sampling(), RequestedSampling(seed=3), 0, 9).seed is None


def test_versions_that_an_engine_tells_at_the_end_replace_those_of_its_request_only():
    sampled = Sampled()
    sampled.take(TokenChunk(token_ids=[1, 2], logprobs=[-1.0, -1.0], policy_version=3), "c", 0)
    sampled.take(TokenChunk(token_ids=[3, 4], logprobs=[-1.0, -1.0], policy_version=5), "c", 2)
    told = (VersionSpan(start=0, policy_version=4), VersionSpan(start=1, policy_version=5))
    sampled.take(TokenChunk(token_ids=[], logprobs=[], policy_version=5, finish_reason="stop", versions=told), "c", 2)
    assert [(span.start, span.policy_version) for span in sampled.versions] == [(0, 3), (2, 4), (3, 5)]
    assert sampled.ended()
