"""One call under way and its followers."""

import asyncio

import pytest

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead
from whippletree.gateway.live import LiveCall, Reply
from whippletree.gateway.sources import Sampled
from whippletree.protocols import StreamDelta
from whippletree.types import Call, CallTimes, ParsedMessage, Sampling

CALL = Call(
    call_id="c-1", rollout_id="r", attempt=1, index=0, digest="d", prompt_tokens=1, sampled_tokens=1, finish_reason="stop",
    times=CallTimes(received=0.0), sampling=Sampling(),
)  # fmt: skip
REPLY = Reply(call=CALL, message=ParsedMessage(content="ab"))


def begin(sample, record):
    live = LiveCall("d", Sampled(), ReplyHead(call_id="c-1", model="m", created=0))
    live.start(lambda: sample(live), record)
    return live


def begin_endless():
    """A call that samples for ever, and what its record is told: whether it is complete."""
    told = []

    async def sample(live):
        await asyncio.sleep(60)

    async def record(complete):
        told.append(complete)

    return begin(sample, record), told


async def recorded(complete):
    return REPLY


async def follow(live):
    return [delta.content async for delta in live.follow(10.0) if delta is not None]


async def test_followers_see_every_delta_whenever_they_join():
    go = asyncio.Event()

    async def sample(live):
        live.publish([StreamDelta(content="a")])
        await go.wait()
        live.publish([StreamDelta(content="b")])

    live = begin(sample, recorded)
    first = asyncio.create_task(follow(live))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(follow(live))
    await asyncio.sleep(0.01)
    go.set()
    assert await first == await second == await follow(live) == ["a", "b"]
    assert await live.done is REPLY


async def test_done_resolves_only_after_the_record():
    stored = asyncio.Event()

    async def sample(live):
        live.publish([StreamDelta(content="a")])

    async def record(complete):
        assert complete
        await stored.wait()
        return REPLY

    live = begin(sample, record)
    await asyncio.sleep(0.01)
    assert not live.done.done()
    live.join()
    live.leave()  # recording is never cut short
    stored.set()
    assert await live.done is REPLY


async def test_the_last_follower_that_leaves_ends_the_call_and_its_record_says_so():
    live, told = begin_endless()
    live.join()
    live.join()
    await asyncio.sleep(0.01)
    live.leave()
    assert not await live.settled(0.01)
    live.leave()
    assert await live.settled(60.0)
    assert told == [False]
    with pytest.raises(RequestError, match="went away"):
        await live.done


async def test_a_call_that_lingers_is_abandoned_only_when_nobody_has_come_back_in_time():
    live, told = begin_endless()
    live.join()
    live.leave(0.02)
    live.join()  # came back
    assert not await live.settled(0.1)
    live.leave(0.02)
    assert not live.followed and not live.abandoned
    assert await live.settled(60.0)
    assert live.abandoned and told == [False]


async def test_a_failure_is_recorded_and_told_to_everyone():
    told = []

    async def sample(live):
        raise RequestError("no engine", status=503)

    async def record(complete):
        told.append(complete)

    live = begin(sample, record)
    for _ in range(2):
        with pytest.raises(RequestError, match="no engine"):
            await asyncio.shield(live.done)
    assert told == [False]
    assert await follow(live) == []
