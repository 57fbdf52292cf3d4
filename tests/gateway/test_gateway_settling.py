"""When a rollout's record stands still."""

import asyncio

from whippletree.gateway.keys import AttemptKey
from whippletree.gateway.leaves import Leaves
from whippletree.gateway.session import Session
from whippletree.gateway.settling import Presence, settle
from whippletree.types import Sampling

KEY = AttemptKey(rollout_id="r0", attempt=1)


async def test_a_rollout_without_calls_is_settled_at_the_second_look(make_world):
    async with make_world(None) as world:
        assert await settle(Presence(), world.store, KEY, 60.0)
        assert not await settle(Presence(), world.store, KEY, 0.0)


async def test_it_does_not_settle_while_a_call_is_under_way(make_world):
    async with make_world(lambda prompt: "word " * 40) as world:
        await world.engines[0].pause()
        pending = asyncio.create_task(world.chat([{"role": "user", "content": "go"}]))
        while not (await world.control.status_async()).in_flight:
            await asyncio.sleep(0.01)
        early = await world.control.rollout_async("r0", settle=0.2)
        assert (early.settled, early.view.calls) == (False, ())
        await world.engines[0].resume()
        assert (await pending)[0] == 200
        late = await world.control.rollout_async("r0", settle=60.0)
        assert late.settled
        assert [call.delivered for call in late.view.calls] == [True]


async def test_a_delivery_that_is_being_written_is_waited_for(make_world):
    async with make_world(None) as world:
        presence, session = Presence(), Session(KEY, Sampling(), Leaves(1000))
        presence.note(session)
        writing = asyncio.get_running_loop().create_future()
        session.marks.add(writing)
        assert not await settle(presence, world.store, KEY, 0.15)
        waiting = asyncio.create_task(settle(presence, world.store, KEY, 60.0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        session.marks.discard(writing)
        assert await waiting


async def test_presence_keeps_no_session_alive(make_world):
    import gc

    presence, session = Presence(), Session(KEY, Sampling(), Leaves(1000))
    presence.note(session)
    session.users += 1
    assert presence.busy(KEY)
    del session
    gc.collect()
    assert not presence.busy(KEY)


async def test_a_record_that_changes_between_looks_is_not_settled(make_world):
    async with make_world(lambda prompt: "hi") as world:
        read, looks, end = world.store.calls, [], 3

        def growing(rollout_id, attempt):
            looks.append(1)
            return read(rollout_id, attempt) + [type("Record", (), {"delivered": True})] * min(len(looks), end)

        world.store.calls = growing
        assert await settle(Presence(), world.store, KEY, 60.0)
        assert len(looks) == end + 1
        looks, end = [], 10**6
        assert not await settle(Presence(), world.store, KEY, 0.3)
