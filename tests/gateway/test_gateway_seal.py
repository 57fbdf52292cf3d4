"""Holding, sealing and counting."""

import asyncio

import pytest
from gateway_world import Halting, user

from whippletree.engines.scripted import Faults
from whippletree.errors import RequestError
from whippletree.types import Sampling, WeightUpdate


async def under_way(world, count=1):
    while (await world.control.status_async()).in_flight != count:
        await asyncio.sleep(0.01)


async def test_a_hold_drains_and_the_held_harness_notices_only_a_slow_answer(make_world):
    async with make_world(lambda prompt: "hello") as world:
        await world.engines[0].pause()
        running = asyncio.create_task(world.chat([user("go")]))
        await under_way(world)
        holding = asyncio.create_task(world.control.hold_async())
        while not (await world.control.status_async()).held:
            await asyncio.sleep(0.01)
        assert not holding.done()
        await world.engines[0].resume()
        report = await holding
        assert (report.held, report.in_flight) == (True, 0)
        assert (await running)[0] == 200
        waiting = asyncio.create_task(world.chat([user("go on")]))
        while (await world.control.status_async()).waiting != 1:
            await asyncio.sleep(0.01)
        assert len(world.calls()) == 1
        await world.control.release_async()
        assert (await waiting)[0] == 200
        assert len(world.calls()) == 2


async def test_a_hold_with_a_limit_says_how_many_still_run(make_world):
    async with make_world(None, faults=Faults(first_token_seconds=30.0)) as world:
        running = asyncio.create_task(world.chat([user("go")]))
        await under_way(world)
        assert (await world.control.hold_async(limit=0.05)).in_flight == 1
        assert (await world.control.release_async()).held is False
        running.cancel()


async def test_a_call_that_the_engine_ended_during_a_hold_goes_on_after_the_release(make_world):
    """Partial rollouts: hold, abort in the engine, new weights, release; the harness gets one whole reply."""

    class Watched(Halting):
        async def generate(self, request):
            asked.append(request.request_id)
            async for chunk in super().generate(request):
                yield chunk

    asked = []
    engine = Watched(None, vocabulary=420, context=4096, halt_after=7)
    async with make_world(engines=[engine], sampling=Sampling(max_tokens=30, seed=5)) as world:
        pending = asyncio.create_task(world.chat([user("go")]))
        await engine.halted.wait()
        held = asyncio.create_task(world.control.hold_async())
        while not (await world.control.status_async()).held:
            await asyncio.sleep(0.01)
        await engine.abort(asked[-1])
        assert (await held).in_flight == 0
        await engine.resume()
        await engine.update_weights(WeightUpdate(directory="/new", policy_version=1))
        await world.control.release_async()
        status, reply = await pending
        (call,) = world.calls()
        assert status == 200
        assert [span.policy_version for span in call.versions] == [0, 1]
        assert 0 < call.versions[1].start < call.sampled_tokens == reply["usage"]["completion_tokens"]


async def test_a_sealed_attempt_takes_no_calls_and_its_counts_stand(make_world):
    async with make_world(lambda prompt: "hello") as world:
        await world.chat([user("go")])
        report = await world.control.seal_async("r0", 1)
        assert (report.sealed, report.calls, report.delivered) == (True, 1, 1)
        status, body = await world.chat([user("go")])
        assert (status, body["error"]["code"]) == (403, "sealed")
        assert "attempt 1 of rollout 'r0' is sealed" in body["error"]["message"]
        assert await world.control.seal_async("r0", 1) == report
        assert world.store.attempts("r0")[0].sealed
        assert (await world.chat([user("go")], rollout="r1"))[0] == 200


async def test_a_seal_waits_for_the_calls_in_flight(make_world):
    async with make_world(["slow answer"]) as world:
        await world.engines[0].pause()
        pending = asyncio.create_task(world.chat([user("go")]))
        await under_way(world)
        sealing = asyncio.create_task(world.control.seal_async("r0", 1))
        await asyncio.sleep(0.1)
        assert not sealing.done()
        await world.engines[0].resume()
        report = await sealing
        assert report.calls == 1
        assert (await pending)[0] == 200
        assert world.calls()[0].finish_reason == "stop"


async def test_a_seal_cancels_at_its_limit_and_records_what_was_sampled(make_world):
    engine = Halting(lambda prompt: [7] * 300, vocabulary=420, context=4096, halt_after=7)
    async with make_world(engines=[engine], sampling=Sampling(max_tokens=3000)) as world:
        pending = asyncio.create_task(world.chat([user("go")]))
        await engine.halted.wait()
        report = await world.control.seal_async("r0", 1, limit=0.05)
        assert (report.sealed, report.calls, report.delivered) == (True, 1, 0)
        assert world.calls()[0].finish_reason == "abort"
        status, body = await pending
        assert (status, body["error"]["code"]) == (403, "sealed")


async def test_a_seal_refuses_a_call_that_waits_for_a_hold_at_once(make_world):
    async with make_world(lambda prompt: "hello") as world:
        await world.control.hold_async()
        pending = asyncio.create_task(world.chat([user("go")]))
        while (await world.control.status_async()).waiting != 1:
            await asyncio.sleep(0.01)
        report = await world.control.seal_async("r0", 1, limit=30.0)
        assert report.calls == 0
        assert (await pending)[0] == 403


async def test_an_attempt_that_was_sealed_in_the_store_is_fenced_off(make_world):
    """The controller re-queued it while the gateway was sampling: the late call is refused by the store."""
    async with make_world(["one", "two"]) as world:
        await world.engines[0].pause()
        pending = asyncio.create_task(world.chat([user("go")]))
        await under_way(world)
        await asyncio.wrap_future(world.store.release_worker("worker"))
        await world.engines[0].resume()
        status, body = await pending
        assert (status, body["error"]["code"]) == (403, "sealed")
        assert world.calls() == []
        assert (await world.chat([user("go")]))[0] == 403
        assert (await world.control.status_async()).sessions == 0
        await asyncio.wrap_future(world.store.claim("worker", 3))
        assert (await world.chat([user("go")], attempt=2))[1]["choices"][0]["message"]["content"] == "two"  # none was wasted
        assert (await world.control.seal_async("r0", 1)).sealed is False


async def test_a_seal_of_what_the_store_does_not_know_is_an_error(make_world):
    async with make_world(None) as world:
        with pytest.raises(RequestError) as error:
            await world.control.seal_async("../other?x#y", 1)
        assert "../other?x#y" in str(error.value)
