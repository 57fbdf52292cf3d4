"""One request, one sampling: joins, replays, and going on with what was cut short."""

import asyncio

from gateway_world import SECRET, Halting, slow_disk, until, user

from whippletree.engines.scripted import Faults
from whippletree.gateway.keys import mint
from whippletree.gateway.live import LiveCall
from whippletree.types import Sampling


async def test_an_equal_request_joins_the_one_under_way(make_world):
    async with make_world(["only one"], faults=Faults(token_seconds=0.01)) as world:
        one, two = await asyncio.gather(world.chat([user("go")]), world.chat([user("go")]))
        assert one == two
        assert one[1]["choices"][0]["message"]["content"] == "only one"
        assert len(world.calls()) == 1


async def test_a_streamed_twin_joins_a_whole_request_and_misses_nothing(make_world):
    async with make_world(["only one"], faults=Faults(token_seconds=0.02)) as world:
        whole = asyncio.create_task(world.chat([user("go")], tools=[]))
        await asyncio.sleep(0.08)
        body = {"model": "policy", "messages": [user("go")], "tools": [], "stream": True}
        async with world.http.post(f"{world.url}/r/{mint(SECRET, 'r0', 1)}/v1/chat/completions", json=body) as response:
            streamed = await response.text()
        assert (await whole)[1]["id"] in streamed
        assert streamed.count('"content":') > 3
        assert len(world.calls()) == 1


async def test_a_retry_of_a_delivered_request_is_told_the_same_reply(make_world):
    async with make_world(["one", "two"]) as world:
        first = await world.chat([user("go")])
        again = await world.chat([user("go")], headers={"x-stainless-retry-count": "1"})
        assert again == first
        assert len(world.calls()) == 1
        fresh = await world.chat([user("go")], headers={"x-stainless-retry-count": "0"})
        assert fresh[1]["choices"][0]["message"]["content"] == "two"


async def test_a_reply_that_nobody_took_is_told_to_the_retry(make_world, monkeypatch):
    """The client goes away while the call is being recorded: the reply is complete, and not delivered."""
    leave, left = LiveCall.leave, asyncio.Event()

    def note(live, linger=0.0):
        leave(live, linger)
        left.set()

    monkeypatch.setattr(LiveCall, "leave", note)
    async with make_world(["one"], faults=Faults(token_seconds=0.01)) as world:
        with slow_disk(world.store) as (asked, may_record):
            first = asyncio.create_task(world.chat([user("go")]))
            await asked.wait()
            first.cancel()
            await left.wait()  # the gateway has seen it go
            may_record.set()
            await until(world.calls)
        status, reply = await world.chat([user("go")])
        assert (status, reply["choices"][0]["message"]["content"]) == (200, "one")
        assert len(world.calls()) == 1
        await world.control.seal_async("r0", 1)
        assert world.calls()[0].delivered


async def test_a_retry_of_a_call_that_was_cut_short_goes_on_with_it(make_world):
    """Sampling it anew would favour short replies: long ones are the ones that clients give up on."""
    engine = Halting(None, vocabulary=420, context=4096, halt_after=7)
    async with make_world(engines=[engine], sampling=Sampling(max_tokens=30, seed=1)) as world:
        first = asyncio.create_task(world.chat([user("go")]))
        await engine.halted.wait()
        first.cancel()
        await until(world.calls)
        await engine.resume()
        (cut,) = world.calls()
        assert (cut.finish_reason, cut.delivered) == ("abort", False)
        assert 0 < cut.sampled_tokens < 30
        status, reply = await world.chat([user("go")])
        assert status == 200
        _, whole = world.calls()
        assert world.prompt_ids(whole) == world.prompt_ids(cut)
        begun = world.store.payload(cut)
        done = world.store.payload(whole)
        assert done.sampled_ids[: cut.sampled_tokens].tolist() == begun.sampled_ids.tolist()
        assert done.logprobs[: cut.sampled_tokens].tolist() == begun.logprobs.tolist()
        assert reply["usage"]["completion_tokens"] == whole.sampled_tokens > cut.sampled_tokens


async def test_requests_of_two_attempts_never_join(make_world):
    async with make_world(["one", "two"], faults=Faults(token_seconds=0.01)) as world:
        await asyncio.gather(world.chat([user("go")]), world.chat([user("go")], rollout="r1"))
        assert len(world.calls("r0")) == len(world.calls("r1")) == 1
