"""Sampled ids on their way to the followers."""

import asyncio

import pytest

from whippletree.gateway.feeding import Feed
from whippletree.gateway.turns import message_of
from whippletree.protocols import StreamDelta
from whippletree.types import ToolSpec

CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
BASH = (ToolSpec(name="bash"),)


@pytest.fixture
def feed(renderer):
    def make(stops=()):
        published = []
        made = Feed(renderer.parser(BASH, stops), published.append, exact=bool(stops))
        return made, published

    return make


async def test_the_first_ids_are_published_at_once_and_later_ones_in_batches(feed, renderer):
    made, published = feed()
    ids = renderer.codec.encode("hello there")
    made.take(ids[:2])
    made.take(ids[2:4])
    assert published == []
    await asyncio.sleep(0)
    assert len(published) == 1
    for token in ids[4:]:
        made.take([token])
        await asyncio.sleep(0)
    while len(published) < 2:
        await asyncio.sleep(0.001)
    joined = "".join(delta.content for batch in published for delta in batch)
    assert "hello there".startswith(joined)
    assert len(published) < len(ids) - 3


async def test_what_is_published_is_the_turn(feed, renderer):
    made, published = feed()
    for token in renderer.codec.encode(f"look {CALL}<|im_end|>"):
        made.take([token])
        await asyncio.sleep(0)
    message = made.finish("stop")
    joined = message_of([delta for batch in published for delta in batch], "stop")
    assert (joined.content, joined.tool_calls) == (message.content, message.tool_calls)
    assert message.tool_calls[0].name == "bash"


async def test_nothing_after_a_stop_string_is_kept(feed, renderer):
    made, published = feed(("END",))
    ids = [renderer.codec.encode(letter)[0] for letter in "ab END more"]
    assert made.take(ids[:2]) == 2
    assert made.take(ids[2:]) == 4
    assert made.stopped
    message = made.finish("stop")
    assert (message.content, message.stop_sequence) == ("ab ", "END")
    assert "".join(delta.content for batch in published for delta in batch) == "ab "


async def test_the_beginning_of_a_forced_turn_is_told_with_the_first_sampled_ids(feed, renderer):
    made, published = feed()
    made.force(renderer.codec.encode('<tool_call>{"name": "bash", "arguments": '))
    await asyncio.sleep(0)
    assert published == []
    assert not made.started
    made.take(renderer.codec.encode('{"command": "ls"}}</tool_call>'))
    message = made.finish("stop")
    joined = message_of([delta for batch in published for delta in batch], "stop")
    assert joined.tool_calls == message.tool_calls
    assert message.tool_calls[0].arguments == '{"command": "ls"}'


async def test_an_engine_that_parses_by_itself_is_taken_at_its_word(feed):
    made, published = feed()
    made.tell([StreamDelta(content="<tool_call>hel")])
    made.tell([StreamDelta(content="lo"), StreamDelta(tool_index=0, tool_id="c", tool_name="bash", arguments="{}")])
    message = made.finish("stop")
    assert (message.content, message.finish_reason) == ("<tool_call>hello", "tool_calls")
    assert message.tool_calls[0].arguments == "{}"
    assert [len(batch) for batch in published] == [1, 2]
