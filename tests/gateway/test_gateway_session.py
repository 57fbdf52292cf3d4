"""An attempt in memory and in the store."""

import asyncio

import pytest
from aiohttp import ClientSession
from gateway_world import SECRET, user

from whippletree.errors import RequestError
from whippletree.gateway.keys import AttemptKey
from whippletree.gateway.leaves import Leaves
from whippletree.gateway.roles import Hints
from whippletree.gateway.server import Parts, serving
from whippletree.gateway.session import load_session
from whippletree.types import Sampling

CALL = '<tool_call>{"name": "bash", "arguments": {"command":  "ls"}}</tool_call>'


async def converse(world, messages, turns):
    for turn in range(turns):
        status, reply = await world.chat(messages)
        assert status == 200
        said = reply["choices"][0]["message"]
        messages += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": f"out {turn}"}]


async def test_a_session_read_from_the_store_is_the_one_that_recorded_the_calls(make_world):
    async with make_world(lambda prompt: "look " + CALL) as world:
        messages = [{"role": "system", "content": "be brief"}, user("go")]
        await converse(world, messages, 3)
        await world.chat([user("a title?")])
        await world.chat(messages[:2])
        read = load_session(world.store, AttemptKey(rollout_id="r0", attempt=1), Leaves(10**6))
        again = load_session(world.store, AttemptKey(rollout_id="r0", attempt=1), Leaves(10**6))
        assert read.next_index == 5
        for call in world.calls():
            node = read.lineage.nodes[call.call_id]
            sampled = world.store.payload(call).sampled_ids.tolist()
            assert read.lineage.ids(node).tolist() == [*world.prompt_ids(call), *sampled]
            assert again.lineage.nodes[call.call_id].links == node.links


async def test_calls_go_on_from_the_same_ids_after_the_gateway_was_restarted(make_world):
    async with make_world(lambda prompt: "look " + CALL, sampling=Sampling(max_tokens=400, seed=1)) as world:
        messages = [{"role": "system", "content": "be brief"}, user("go")]
        await converse(world, messages, 2)
        await world.control.hold_async()  # what the old process holds must not matter
        parts = Parts(store=world.store, engines=world.engines, renderer=world.renderer, secret=SECRET)
        async with serving(world.config, parts) as port, ClientSession() as session:
            world.url, world.http, kept = f"http://127.0.0.1:{port}", session, world.http
            await converse(world, messages, 2)
            calls = world.calls()
            assert [call.prefix_break for call in calls] == ["first", "", "", ""]
            assert [call.parent_call_id for call in calls[1:]] == [call.call_id for call in calls[:3]]
            assert [call.index for call in calls] == [0, 1, 2, 3]
            assert len({call.sampling.seed for call in calls}) == 4
            _, repeated = await world.chat(messages[:-2], headers={"x-stainless-retry-count": "2"})
            assert repeated["choices"][0]["message"] == messages[-2]
            assert len(world.calls()) == 4
            world.http = kept


async def test_sessions_over_the_limit_are_dropped_and_read_again(make_world):
    async with make_world(lambda prompt: "look " + CALL, max_sessions=1) as world:
        one, two = [user("go")], [user("go")]
        await converse(world, one, 1)
        await world.chat(two, rollout="r1")
        assert (await world.control.status_async()).sessions == 1
        await converse(world, one, 1)
        assert [call.prefix_break for call in world.calls()] == ["first", ""]


async def test_an_attempt_that_is_over_takes_no_calls(make_world):
    async with make_world(lambda prompt: "hi") as world:
        await asyncio.wrap_future(world.store.seal("r0", 1))
        await asyncio.wrap_future(world.store.release_worker("worker"))
        await asyncio.wrap_future(world.store.claim("worker", 3))
        for rollout in ("r0", "r1"):
            session = load_session(world.store, AttemptKey(rollout_id=rollout, attempt=1), Leaves(10**6))
            with pytest.raises(RequestError, match="is sealed") as error:
                session.check_open()
            assert error.value.status == 403
        load_session(world.store, AttemptKey(rollout_id="r1", attempt=2), Leaves(10**6)).check_open()


async def test_roles_are_judged_alike_after_the_attempt_was_read_again(make_direct):
    async with make_direct(lambda prompt: "hello", max_sessions=1) as direct:
        main = await direct.ask([user("go")], hints=Hints(client="agent/1"))
        await direct.settled()
        await direct.ask([user("go")], rollout="r1")  # the first attempt leaves memory
        title = await direct.ask([user("a title?")], tools=[], hints=Hints(client="agent/1"))
        stranger = await direct.ask([user("hm")], hints=Hints(client="curl/8"))
        later = await direct.ask([user("go"), {"role": "assistant", "content": "hello"}, user("on")])
        assert [reply.call.role for reply in (main, title, stranger, later)] == ["main", "side", "side", "main"]
