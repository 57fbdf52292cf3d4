"""Conversations and requests put together from the store."""

import json

import pytest
from gateway_world import user

from whippletree.errors import StoreError
from whippletree.gateway.history import conversation, offered_tools, stored_request


async def test_a_conversation_is_that_of_the_prompt_however_many_calls_brought_it(make_direct):
    async with make_direct(lambda prompt: f"reply {len(prompt)}") as direct:
        messages, sent = [{"role": "system", "content": "be brief"}, user("go")], []
        for turn in range(5):
            sent.append(list(messages))
            reply = await direct.ask(messages, user=f"u{turn}")
            messages += [{"role": "assistant", "content": reply.message.content}, user(f"on {turn}")]
        side = await direct.ask([user("a title?")], tools=[])
        for call, expected in zip(direct.calls(), [*sent, [user("a title?")]], strict=True):
            found = conversation(direct.store, call)
            assert [(message.role, message.content) for message in found] == [
                (item["role"], item["content"]) for item in expected
            ]
            rendered = direct.renderer.render(found, () if call.call_id == side.call.call_id else direct_tools(direct))
            assert direct.ids(call)[0] == rendered
            assert json.loads(stored_request(direct.store, call))["messages"] == expected


def direct_tools(direct):
    return direct.incoming([user("x")]).request.tools


async def test_a_payload_that_is_gone_is_an_error(make_direct):
    async with make_direct(["one", "two"]) as direct:
        await direct.ask([user("go")])
        second = await direct.ask([user("go"), {"role": "assistant", "content": "one"}, user("on")])
        direct.store.release(["r0"])
        for read in (conversation, stored_request):
            with pytest.raises(StoreError, match="released"):
                read(direct.store, second.call)


async def test_the_tools_of_a_request_are_those_that_the_model_saw(make_direct):
    async with make_direct(["one", "two", "three"]) as direct:
        messages = [user("go")]
        await direct.ask(messages)
        messages += [{"role": "assistant", "content": "one"}, user("on")]
        await direct.ask(messages)
        await direct.ask([user("a title?")], tools=[])
        calls = direct.calls()
        payloads = {call.call_id: direct.store.payload(call) for call in calls}
        expected = [direct_tools(direct), direct_tools(direct), ()]
        assert [offered_tools(call, payloads) for call in calls] == expected and expected[0]
        del payloads[calls[0].call_id]
        with pytest.raises(StoreError, match=calls[1].call_id):
            offered_tools(calls[1], payloads)  # its base has what it does not repeat
