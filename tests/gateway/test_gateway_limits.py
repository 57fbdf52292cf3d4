"""Retries under another limit or transport, misaligned chunks, and attempts that leave memory."""

import asyncio

import pytest
from gateway_world import user

from whippletree.engines.scripted import Faults, ScriptedEngine
from whippletree.types import Sampling, TokenChunk


def endless(prompt):
    return [7 + len(prompt) % 50] * 100


async def test_a_reply_cut_at_its_limit_is_sampled_anew_under_a_larger_one(make_direct):
    async with make_direct(engines=[ScriptedEngine(endless, vocabulary=420, context=4096)]) as direct:
        short = await direct.ask([user("go")], max_tokens=5)
        assert (short.call.finish_reason, short.call.sampled_tokens) == ("length", 5)
        same = await direct.ask([user("go")], max_tokens=5, retry=True)
        smaller = await direct.ask([user("go")], max_tokens=3, retry=True)
        assert same.call.call_id == smaller.call.call_id == short.call.call_id
        longer = await direct.ask([user("go")], max_tokens=9, retry=True)
        assert longer.call.call_id != short.call.call_id
        assert longer.call.sampled_tokens == 9


async def test_an_undelivered_reply_is_told_again_whatever_the_limit(make_direct):
    async with make_direct(engines=[ScriptedEngine(endless, vocabulary=420, context=4096)]) as direct:
        short = await direct.ask([user("go")], max_tokens=5, deliver=False)
        again = await direct.ask([user("go")], max_tokens=9, stream=True)
        assert again.call.call_id == short.call.call_id
        assert len(direct.calls()) == 1


async def test_a_limit_of_the_run_is_not_asked_for_again(make_direct):
    engine = ScriptedEngine(endless, vocabulary=420, context=4096)
    async with make_direct(engines=[engine], sampling=Sampling(max_tokens=5)) as direct:
        short = await direct.ask([user("go")])
        again = await direct.ask([user("go")], max_tokens=900, retry=True)
        assert again.call.call_id == short.call.call_id


class Stutters(ScriptedEngine):
    """Sends `bad` chunks whose ids and logprobs do not line up, each after two good ones, each once."""

    bad = 1

    async def generate(self, request):
        count = 0
        async for chunk in super().generate(request):
            count += 1
            if count == 3 and self.bad:
                self.bad -= 1
                yield TokenChunk(token_ids=chunk.token_ids, logprobs=[], policy_version=0)
                return
            yield chunk


async def test_a_chunk_that_does_not_line_up_is_dropped_and_the_turn_goes_on(make_direct):
    engine = Stutters(endless, vocabulary=420, context=4096)
    async with make_direct(engines=[engine], sampling=Sampling(max_tokens=9, seed=1)) as direct:
        reply = await direct.ask([user("go")])
        payload = direct.store.payload(reply.call)
        assert len(payload.sampled_ids) == len(payload.logprobs) == 9
        prompt, sampled = direct.ids(reply.call)
        scores = await engine.score([*prompt, *sampled])
        assert payload.logprobs.tolist() == pytest.approx(scores[len(prompt) - 1 :], abs=1e-5)
        assert reply.call.error == ""
        assert direct.gateway._generator.misaligned == 1


async def test_attempts_that_nobody_asks_for_leave_memory_and_come_back(make_direct):
    async with make_direct(lambda prompt: "hello", session_idle_limit=0.1) as direct:
        first = await direct.ask([user("go")])
        await direct.settled()
        while direct.gateway._sessions:
            await asyncio.sleep(0.01)
        assert direct.gateway._leaves.size == 0
        second = await direct.ask([user("go"), {"role": "assistant", "content": "hello"}, user("on")])
        assert second.call.parent_call_id == first.call.call_id


async def test_an_attempt_with_a_call_under_way_stays(make_direct):
    async with make_direct(
        None, faults=Faults(token_seconds=0.03), session_idle_limit=0.05, sampling=Sampling(max_tokens=9)
    ) as direct:
        await direct.ask([user("go")])
        assert len(direct.gateway._sessions) == 1
