"""Input items of Responses requests → messages."""

import json

import pytest
from gateway_world import user
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.errors import RequestError
from whippletree.gateway.dialects import Target
from whippletree.gateway.dialects.responses import ResponsesDialect
from whippletree.gateway.dialects.responses_compaction import INTRODUCTION, REQUEST, seal
from whippletree.gateway.dialects.signatures import sign
from whippletree.types import Message, ToolCall

DIALECT = ResponsesDialect()
PNG = "data:image/png;base64,iVBORw0KGgo="


def parse(items, **body):
    return DIALECT.parse(json.dumps({"input": items, **body}).encode(), Target())


def called(name, call_id="c1", **fields):
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}", **fields}


def result(text, call_id="c1"):
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def said(text, **fields):
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **fields}


def thought(text, **fields):
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}], **fields}


def roles(request):
    return [message.role for message in request.messages]


def test_a_text_is_a_message_of_the_user_and_instructions_come_first():
    request = parse("hi", instructions="be brief")
    assert request.messages == (Message(role="system", content="be brief"), Message(role="user", content="hi"))


def test_leading_system_messages_are_one_and_later_ones_stay_in_their_place():
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"role": "system", "content": "c"},
        user("hi"),
        {"role": "developer", "content": "late"},
    ]
    request = parse(items, instructions="first")
    assert request.messages == (
        Message(role="system", content="first\n\nab\n\nc"),
        Message(role="user", content="hi"),
        Message(role="user", content="late"),
    )
    assert roles(parse(items[:1], previous_response_id="resp_5d1f")) == ["user"]


def test_items_between_two_inputs_are_one_assistant_message():
    request = parse(
        [
            user("hi"),
            thought("one", encrypted_content=sign("c-5d1f")),
            said("text"),
            called("bash"),
            called("bash", "c2"),
            result("r1"),
            result("r2", "c2"),
            thought("two"),
            said("done"),
            user("more"),
        ]
    )
    assert roles(request) == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert request.messages[1] == Message(
        role="assistant",
        content="text",
        reasoning="one",
        tool_calls=(ToolCall(id="c1", name="bash", arguments="{}"), ToolCall(id="c2", name="bash", arguments="{}")),
        signature="c-5d1f",
    )
    assert request.messages[4] == Message(role="assistant", content="done", reasoning="two")


def test_items_of_two_calls_are_two_messages_where_their_ids_say_so():
    one, two = said("a", id="msg_aa_0"), called("bash", id="fc_bb_1")
    assert roles(parse([user("hi"), one, two])) == ["user", "assistant", "assistant"]
    assert roles(parse([user("hi"), one, {**two, "id": "fc_aa_1"}])) == ["user", "assistant"]
    assert roles(parse([user("hi"), one, {**two, "id": "fc_8356d9403ece423781f1068e"}])) == ["user", "assistant"]


def test_reasoning_of_others_is_kept_as_text_and_its_cipher_is_not_used():
    items = [user("hi"), {"type": "reasoning", "id": "rs_x", "encrypted_content": "opaque=="}, said("b"), user("c")]
    request = parse(items)
    assert request.messages[1] == Message(role="assistant", content="b")
    assert request.ignored == ("input.reasoning.encrypted_content",)
    content = [{"type": "reasoning_text", "text": "raw"}]
    assert parse([user("hi"), thought("short", content=content)]).messages[1].reasoning == "raw"
    assert parse([user("hi"), thought("short", content=None)]).messages[1].reasoning == "short"
    assert roles(parse([user("hi"), {"type": "reasoning", "summary": [], "encrypted_content": "x"}, user("c")])) == ["user"] * 2


def test_an_empty_assistant_message_stays_a_message():
    assert parse([user("hi"), said(""), user("?")]).messages[1] == Message(role="assistant")


def test_a_conversation_of_twenty_turns_keeps_its_calls():
    items = [user("collect")]
    for place in range(20):
        items += [
            thought(f"slot {place}"),
            called("vault", f"c{place}", arguments=f'{{"slot":{place}}}'),
            result("t", f"c{place}"),
        ]
    request = parse(items)
    assert roles(request) == ["user", *["assistant", "tool"] * 20]
    calls = [message.tool_calls[0] for message in request.messages[1::2]]
    assert [call.arguments for call in calls] == [f'{{"slot":{place}}}' for place in range(20)]
    assert [message.tool_call_id for message in request.messages[2::2]] == [call.id for call in calls]


def test_outputs_in_every_form():
    parts = [{"type": "input_text", "text": "see "}, {"type": "input_image", "image_url": PNG}]
    runs = [{"stdout": "a\n", "stderr": "b\n", "outcome": {"type": "exit", "exit_code": 0}}]
    request = parse(
        [
            user("hi"),
            result(parts),
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "raw"},
            {"type": "local_shell_call_output", "id": "c3", "output": "x"},
            {"type": "shell_call_output", "call_id": "c4", "output": runs},
            {"type": "apply_patch_call_output", "call_id": "c5", "status": "completed", "output": None},
            {"type": "function_call_output", "call_id": "c6", "output": {"a": 1}},
        ]
    )
    tools = [message for message in request.messages if message.role == "tool"]
    assert [tool.content for tool in tools] == ["see [image image/png]", "raw", "x", "a\nb\n", "", '{"a":1}']
    assert [tool.tool_call_id for tool in tools] == ["c1", "c2", "c3", "c4", "c5", "c6"]
    assert [medium.media_type for medium in tools[0].media] == ["image/png"]


def test_calls_of_tools_that_are_part_of_the_format():
    request = parse(
        [
            user("hi"),
            {"type": "local_shell_call", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}, "status": "completed"},
            {"type": "shell_call", "call_id": "c2", "action": {"commands": ["ls"]}},
            {"type": "apply_patch_call", "call_id": "c3", "operation": {"type": "delete_file", "path": "a"}},
        ]
    )
    calls = request.messages[1].tool_calls
    assert [call.name for call in calls] == ["local_shell", "shell", "apply_patch"]
    assert json.loads(calls[0].arguments) == {"type": "exec", "command": ["ls"]}
    assert json.loads(calls[2].arguments) == {"type": "delete_file", "path": "a"}


def test_images_files_and_audio_are_kept_as_media_and_placeholders():
    parts = [
        {"type": "input_text", "text": "look: "},
        {"type": "input_image", "image_url": PNG, "detail": "high"},
        {"type": "input_image", "image_url": {"url": "https://example.org/a"}},
        {"type": "input_image", "file_id": "file-1"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
        {"type": "input_file", "filename": "b.txt", "file_data": "AAAA"},
        {"type": "input_file", "file_url": "https://example.org/c"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "input_hologram", "hologram": 3},
    ]
    request = parse([{"role": "user", "content": parts}])
    (message,) = request.messages
    assert message.content == (
        "look: [image image/png][image image/*][image image/*]"
        "[file application/pdf][file text/plain][file file/*][audio audio/wav]"
    )
    assert [medium.kind for medium in message.media] == ["image", "image", "image", "file", "file", "file", "audio"]
    assert len({medium.digest for medium in message.media}) == 5  # three of them hold the same bytes
    assert request.ignored == ("content.input_hologram",)


def test_a_compaction_item_of_ours_is_a_summary_and_a_foreign_one_is_nothing():
    for kind in ("compaction", "compaction_summary", "context_compaction"):
        request = parse([{"type": kind, "encrypted_content": seal("we did a")}, user("go on")])
        assert request.messages[0] == Message(role="user", content=INTRODUCTION + "we did a")
        assert request.ignored == ()
        foreign = parse([{"type": kind, "encrypted_content": "opaque"}, user("go on")])
        assert (roles(foreign), foreign.ignored) == (["user"], (f"input.{kind}",))


def test_a_compaction_is_asked_for_at_the_end_and_calls_no_tool():
    tools = [{"type": "function", "name": "bash"}]
    items = [user("hi"), said("a"), {"type": "compaction_trigger"}]
    request = parse(items, tools=tools, tool_choice="required", text={"format": {"type": "json_object"}})
    assert request.messages[-1] == REQUEST
    assert request.messages[:-1] == parse(items[:-1]).messages
    assert (request.tool_choice, request.forced_tool, request.schema, len(request.tools)) == ("none", "", None, 1)


def test_items_of_unknown_types_are_named_and_fail_nothing():
    items = [
        user("hi"),
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
        {"type": "mcp_call", "name": "x", "arguments": "{}", "output": 3, "content": 4},
        {"type": "item_reference", "id": "msg_1"},
        {"type": "tool_search_output", "tools": 3},
        {"type": "hologram", "content": {"a": 1}},
    ]
    request = parse(items)
    assert roles(request) == ["user"]
    assert request.ignored == tuple(f"input.{item['type']}" for item in items[1:])


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([{"role": "robot", "content": "x"}], "input[0].role is 'robot'"),
        ([user("a"), {"role": "user", "content": 3}], "input[1] cannot be read"),
        ([{"role": "user", "content": [{"type": "input_text", "text": 3}]}], "$.content[0].text"),
        ([{"content": "x"}], "input[0] has neither type nor role"),
        (["hi"], "input[0] cannot be read"),
        ([{"type": "function_call", "call_id": "c"}], "input[0].name is missing"),
        ([result(3)], "input[0].output cannot be read"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input[0].content[0].image_url is missing"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,!"}]}],
            "input[0].content[0]",
        ),
        ([], "input is empty"),
        (None, "input is empty"),
        (3, "$.input"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(items, says):
    with pytest.raises(RequestError) as error:
        parse(items)
    assert error.value.status == 400
    assert says in str(error.value)


ITEM = st.sampled_from(
    [
        user("a"),
        said("b"),
        said("b", id="msg_aa_0"),
        thought("t", id="rs_bb_0"),
        thought("t", encrypted_content=sign("c-aa")),
        called("bash"),
        {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x"},
        result("r"),
        {"role": "developer", "content": "d"},
        {"type": "compaction", "encrypted_content": seal("s")},
        {"type": "unknown"},
    ]
)


@settings(deadline=None)
@given(st.lists(ITEM, min_size=1, max_size=8), st.lists(ITEM, max_size=8))
def test_a_longer_conversation_starts_with_the_same_messages(items, more):
    """Up to an assistant message at the end, which later items may still belong to."""
    before, after = parse([user("first"), *items]).messages, parse([user("first"), *items, *more]).messages
    settled = before[:-1] if before[-1].role == "assistant" else before
    assert after[: len(settled)] == settled


@settings(deadline=None)
@given(st.lists(ITEM, max_size=12))
def test_nothing_that_was_said_is_lost_or_doubled(items):
    messages = parse([user("first"), *items]).messages[1:]
    assert sum(len(message.tool_calls) for message in messages) == sum("name" in item for item in items)
    assert [message.content for message in messages if message.role == "tool"] == ["r"] * items.count(result("r"))
    assert "".join(message.content for message in messages if message.role == "assistant") == "b" * sum(
        item.get("role") == "assistant" for item in items
    )
