"""What becomes of a call whose harness goes away."""

import asyncio

from gateway_world import SECRET, slow_disk, until, user

from whippletree.engines.scripted import Faults
from whippletree.gateway.keys import mint

STREAMED = {"model": "policy", "messages": [user("go")], "stream": True}


def address(world):
    return f"{world.url}/r/{mint(SECRET, 'r0', 1)}/v1/chat/completions"


async def running(engine):
    return (await engine.status()).running


async def leave(world):
    """A client that asks, and goes away once the engine is at work for it."""
    gone = asyncio.create_task(world.chat([user("go")]))
    while not await running(world.engines[0]):
        await asyncio.sleep(0.01)
    gone.cancel()
    return gone


async def until_idle(world):
    while await running(world.engines[0]):
        await asyncio.sleep(0.01)


async def test_a_stream_that_is_dropped_ends_the_engines_request_and_is_recorded_undelivered(make_world):
    async with make_world(lambda prompt: "word " * 300, faults=Faults(token_seconds=0.02)) as world:
        async with world.http.post(address(world), json=STREAMED) as response:
            assert b'"content":' in await response.content.readany()
            assert await running(world.engines[0]) == 1
            response.close()
        await until(world.calls)
        assert await running(world.engines[0]) == 0
        (call,) = world.calls()
        assert (call.finish_reason, call.delivered, call.streamed) == ("abort", False, True)
        payload = world.store.payload(call)
        assert len(payload.sampled_ids) == len(payload.logprobs) == call.sampled_tokens > 0
        assert (await world.control.status_async()).in_flight == 0


async def test_a_client_that_leaves_before_the_first_token_leaves_no_record(make_world):
    async with make_world(None, faults=Faults(first_token_seconds=30.0)) as world:
        await leave(world)
        await until_idle(world)
        assert world.calls() == []
        assert (await world.control.status_async()).in_flight == 0


async def test_a_client_that_leaves_while_held_is_forgotten(make_world):
    async with make_world(lambda prompt: "hi") as world:
        await world.control.hold_async()
        gone = asyncio.create_task(world.chat([user("go")]))
        stays = asyncio.create_task(world.chat([user("stay")], rollout="r1"))
        while (await world.control.status_async()).waiting != 2:
            await asyncio.sleep(0.01)
        gone.cancel()
        while (await world.control.status_async()).waiting != 1:
            await asyncio.sleep(0.01)
        await world.control.release_async()
        assert (await stays)[0] == 200
        assert world.calls("r0") == []
        assert len(world.calls("r1")) == 1


async def test_one_of_two_followers_that_leaves_takes_nothing_from_the_other(make_world):
    async with make_world(["only one"], faults=Faults(token_seconds=0.02)) as world:
        gone, stays = (asyncio.create_task(world.chat([user("go")])) for _ in range(2))
        await asyncio.sleep(0.06)
        gone.cancel()
        status, reply = await stays
        assert (status, reply["choices"][0]["message"]["content"]) == (200, "only one")


async def test_who_asks_again_while_the_dropped_call_is_being_recorded_goes_on_from_it(make_world):
    """As after the death of a worker between client and owner: the same request is back before its record is."""
    async with make_world(lambda prompt: "word " * 30, faults=Faults(token_seconds=0.005)) as world:
        with slow_disk(world.store) as (asked, may_record):
            async with world.http.post(address(world), json=STREAMED) as response:
                await response.content.readany()
                response.close()
            await asked.wait()
            again = asyncio.create_task(world.http.post(address(world), json=STREAMED))
            await asyncio.sleep(0.05)
            assert not again.done()
            may_record.set()
            async with await again as response:
                assert response.status == 200
                assert (await response.read()).endswith(b"data: [DONE]\n\n")
        await until(lambda: world.calls()[-1].delivered)
        cut, whole = world.calls()
        assert (cut.finish_reason, cut.delivered) == ("abort", False)
        kept = world.store.payload(cut).sampled_ids.tolist()
        assert world.store.payload(whole).sampled_ids.tolist()[: len(kept)] == kept


async def test_a_call_that_lingers_is_one_call_for_the_client_that_comes_back(make_world):
    async with make_world(lambda prompt: "word " * 30, faults=Faults(token_seconds=0.005), linger_limit=60.0) as world:
        async with world.http.post(address(world), json=STREAMED) as response:
            await response.content.readany()
            await world.engines[0].pause()
            response.close()
        again = asyncio.create_task(world.http.post(address(world), json=STREAMED))
        async with await again as response:
            await response.content.readany()
            await world.engines[0].resume()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        await until(lambda: world.calls() and world.calls()[0].delivered)
        (call,) = world.calls()
        assert call.finish_reason == "stop"


async def test_a_call_that_lingers_to_its_end_is_replayed_to_who_comes_back(make_world):
    async with make_world(lambda prompt: "only one", faults=Faults(token_seconds=0.01), linger_limit=60.0) as world:
        await leave(world)
        await until(world.calls)
        assert not world.calls()[0].delivered
        status, reply = await world.chat([user("go")])
        assert (status, reply["choices"][0]["message"]["content"]) == (200, "only one")
        assert len(world.calls()) == 1


async def test_a_call_that_nobody_comes_back_for_ends_when_it_has_lingered(make_world):
    async with make_world(None, faults=Faults(first_token_seconds=60.0), linger_limit=0.05) as world:
        await leave(world)
        await until_idle(world)
        assert world.calls() == []


async def test_a_seal_waits_for_no_call_that_only_lingers(make_world):
    async with make_world(None, faults=Faults(first_token_seconds=600.0), linger_limit=600.0, seal_limit=600.0) as world:
        await asyncio.wait([await leave(world)])
        report = await asyncio.wait_for(world.control.seal_async("r0", 1), 30)  # not the call's ten minutes
        assert report.sealed and report.calls == 0
        assert not await running(world.engines[0])
