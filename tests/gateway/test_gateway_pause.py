"""A hold for new weights that does not wait for long turns."""

import asyncio

import numpy as np
from gateway_world import until, user

from whippletree.engines.scripted import Faults, ScriptedEngine
from whippletree.types import Sampling, VersionSpan, WeightUpdate


def endless(prompt):
    """More than any limit, and never a token that ends the turn."""
    return [7 + len(prompt) % 50] * 100


async def under_way(direct, tokens, count=1):
    """Wait until `count` calls have sampled so many tokens."""

    def far():
        live = [call for session in direct.gateway._sessions.values() for call in session.live.values()]
        return sum(len(call.sampled.ids) >= tokens for call in live) >= count

    while not far():
        await asyncio.sleep(0.002)


async def test_running_turns_are_ended_and_go_on_under_the_new_weights(make_direct):
    engine = ScriptedEngine(endless, vocabulary=420, context=4096, faults=Faults(token_seconds=0.005))
    async with make_direct(engines=[engine], sampling=Sampling(max_tokens=40, seed=3)) as direct:
        await engine.pause()
        asked = [asyncio.create_task(direct.ask([user(f"go {number}")])) for number in range(4)]
        await until(lambda: len(engine._running) == 4)  # so that none is at its end when another begins
        await engine.resume()
        await under_way(direct, 3, 4)
        report = await direct.gateway.hold(0.01, abort=True)
        assert (report.held, report.in_flight, report.waiting) == (True, 0, 4)
        assert (await engine.status()).running == 0
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in asked)
        await engine.update_weights(WeightUpdate(directory="/new", policy_version=1))
        direct.gateway.release()
        for reply in await asyncio.gather(*asked):
            call = reply.call
            assert [span.policy_version for span in call.versions] == [0, 1]
            assert call.versions[0] == VersionSpan(start=0, policy_version=0)
            change = call.versions[1].start
            prompt, sampled = direct.ids(call)
            assert 3 <= change < len(sampled) <= 40
            new = await engine.score([*prompt, *sampled])
            stored = direct.store.payload(call).logprobs
            assert np.allclose(stored[change:], new[len(prompt) - 1 + change :], atol=1e-5)


async def test_without_abort_a_hold_says_how_many_are_left(make_direct):
    engine = ScriptedEngine(None, vocabulary=420, context=4096, faults=Faults(token_seconds=0.005))
    async with make_direct(engines=[engine], sampling=Sampling(max_tokens=20, seed=3)) as direct:
        asked = asyncio.create_task(direct.ask([user("go")]))
        await under_way(direct, 2)
        assert (await direct.gateway.hold(0.01)).in_flight == 1
        reply = await asked
        assert reply.call.versions == (VersionSpan(start=0, policy_version=0),)


async def test_a_hold_that_aborts_does_not_wait_for_what_has_not_begun_to_answer(make_direct):
    slow = ScriptedEngine(None, vocabulary=420, context=4096, faults=Faults(first_token_seconds=30.0))
    async with make_direct(engines=[slow], sampling=Sampling(max_tokens=5, seed=3)) as direct:
        asked = asyncio.create_task(direct.ask([user("go")]))
        while not (await slow.status()).running:
            await asyncio.sleep(0.002)
        assert (await direct.gateway.hold(0.01, abort=True)).in_flight == 0
        slow.faults = Faults()
        direct.gateway.release()
        assert (await asked).call.sampled_tokens <= 5
        assert direct.gateway.status().resumed == 0
