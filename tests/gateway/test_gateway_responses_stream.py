"""Streamed replies of the Responses dialect: against the whole reply, a reader of our own, and the official client."""

import json

import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._models import construct_type_unchecked
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from readers import events, read_stream, read_whole, strip_logprobs
from turns import by_character, in_pieces

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, Target, TokenText
from whippletree.gateway.dialects.responses import ResponsesDialect
from whippletree.gateway.dialects.responses_compaction import unseal
from whippletree.gateway.dialects.signatures import read
from whippletree.gateway.lineage import normal_form, reply_message
from whippletree.protocols import StreamDelta
from whippletree.types import Call, CallTimes, ParsedMessage, Sampling, ToolCall

DIALECT = ResponsesDialect()
CALL = Call(
    call_id="c-5d1f", rollout_id="r", attempt=1, index=0, digest="d", prompt_tokens=7, sampled_tokens=5, finish_reason="stop",
    times=CallTimes(received=0.0), sampling=Sampling(), cached_tokens=3,
)  # fmt: skip
TOOLS = [
    {"type": "function", "name": "bash"},
    {"type": "custom", "name": "apply_patch"},
    {"type": "namespace", "name": "mcp__fs", "tools": [{"type": "function", "name": "ls"}, {"type": "custom", "name": "exec"}]},
]
NAMES = ["bash", "apply_patch", "mcp__fs__ls", "mcp__fs__exec", "unknown"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CALLS = st.builds(
    ToolCall,
    id=st.uuids().map(lambda value: f"call_{value.hex}"),
    name=st.sampled_from(NAMES),
    arguments=st.one_of(TEXT, TEXT.map(lambda text: json.dumps({"input": text})), st.just("{}")),
)
MESSAGES = st.builds(
    ParsedMessage,
    content=TEXT,
    reasoning=TEXT,
    tool_calls=st.lists(CALLS, max_size=3).map(tuple),
    finish_reason=st.sampled_from(["stop", "tool_calls", "length", "abort"]),
)


def head(input="hi", **body):
    request = DIALECT.parse(json.dumps({"input": input, "tools": TOOLS, "stream": True, **body}).encode(), Target())
    return ReplyHead(call_id="c-5d1f", model="policy", created=1700000000, request=request, prompt_tokens=7)


def streamed(message, size=1, tokens=(), **body):
    writer = DIALECT.stream(head(**body))
    return b"".join(writer.delta(delta) for delta in in_pieces(message, size)) + writer.end(CALL, message, tokens)


def sdk_events(data):
    """The events as the official client reads them from the connection, in chunks of one byte."""
    transport = httpx2.MockTransport(
        lambda request: httpx2.Response(
            200,
            headers={"content-type": "text/event-stream"},
            content=iter([data[place : place + 1] for place in range(len(data))]),
        )
    )
    client = openai.OpenAI(api_key="k", base_url="http://x/v1", http_client=httpx2.Client(transport=transport))
    return list(client.responses.create(model="policy", input="hi", stream=True))


@settings(max_examples=60, deadline=None)
@given(MESSAGES, st.integers(1, 40))
def test_a_stream_is_the_whole_reply_however_it_is_cut(message, size):
    whole = json.loads(DIALECT.reply(head(), CALL, message))
    data = streamed(message, size)
    assert json.loads(events(data)[-1][1])["response"] == whole
    assert read_stream("responses", data) == read_whole("responses", json.dumps(whole).encode())


@settings(max_examples=60, deadline=None)
@given(MESSAGES)
def test_what_the_harness_sends_back_is_what_was_sampled(message):
    items = json.loads(DIALECT.reply(head(), CALL, message))["output"]
    body = {"input": [{"role": "user", "content": "hi"}, *items, {"role": "user", "content": "more"}], "tools": TOOLS}
    _, back, _ = DIALECT.parse(json.dumps(body).encode(), Target()).messages
    assert back.content == message.content
    assert back.reasoning == message.reasoning
    assert back.signature == ("c-5d1f" if message.reasoning else "")
    assert [(call.id, call.name) for call in back.tool_calls] == [(call.id, call.name) for call in message.tool_calls]
    cut = any('"input": "' in call.arguments and not call.arguments.endswith('"}') for call in message.tool_calls)
    if not cut:
        assert normal_form(back) == normal_form(reply_message(message))


@settings(max_examples=20, deadline=None)
@given(MESSAGES)
def test_the_official_client_accumulates_the_whole_reply(message):
    data = streamed(message, 3)
    state = ResponseStreamState(input_tools=openai.omit, text_format=openai.omit)
    pieces = []
    for event in sdk_events(data):
        state.handle_event(event)
        TypeAdapter(ResponseStreamEvent).validate_python(event.to_dict())
        pieces.append(event)
    last = pieces[-1]
    assert last.type == f"response.{last.response.status}"
    whole = json.loads(DIALECT.reply(head(), CALL, message))
    assert last.response.to_dict() == construct_type_unchecked(type_=Response, value=whole).to_dict()
    Response.model_validate(whole)
    texts = [event.delta for event in pieces if event.type == "response.output_text.delta"]
    assert "".join(texts) == message.content == last.response.output_text


def test_the_events_of_every_kind_of_item_in_order():
    message = ParsedMessage(
        reasoning="hm",
        content="ok",
        tool_calls=(
            ToolCall(id="c1", name="mcp__fs__ls", arguments='{"a":1}'),
            ToolCall(id="c2", name="mcp__fs__exec", arguments='{"input": "a\\nb"}'),
        ),
        finish_reason="tool_calls",
    )
    told = [(name.removeprefix("response."), json.loads(text)) for name, text in events(streamed(message, 100))]
    assert [name for name, _ in told] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    response = told[-1][1]["response"]
    assert [item["id"] for item in response["output"]] == ["rs_5d1f_0", "msg_5d1f_1", "fc_5d1f_2", "ctc_5d1f_3"]
    assert response["output"][2:] == [
        {
            "type": "function_call",
            "id": "fc_5d1f_2",
            "call_id": "c1",
            "namespace": "mcp__fs",
            "name": "ls",
            "arguments": '{"a":1}',
            "status": "completed",
        },
        {
            "type": "custom_tool_call",
            "id": "ctc_5d1f_3",
            "call_id": "c2",
            "namespace": "mcp__fs",
            "name": "exec",
            "input": "a\nb",
            "status": "completed",
        },
    ]
    assert read(response["output"][0]["encrypted_content"]) == "c-5d1f"
    assert response["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    }


def test_a_piece_of_every_kind_in_one_delta():
    message = ParsedMessage(
        reasoning="plan", content="Hello world", tool_calls=(ToolCall(id="c", name="bash", arguments="{}"),)
    )
    writer = DIALECT.stream(head())
    data = writer.delta(StreamDelta(reasoning="plan", content="Hello", tool_index=-1)) + writer.delta(
        StreamDelta(content=" world", tool_index=0, tool_id="c", tool_name="bash", arguments="{}")
    )
    assert read_stream("responses", data + writer.end(CALL, message)).message.content == "Hello world"


def test_text_after_a_call_is_a_second_message_and_one_in_the_history():
    pieces = [StreamDelta(content="a"), StreamDelta(tool_index=0, tool_id="c", tool_name="bash", arguments="{}")]
    pieces.append(StreamDelta(content="b"))
    message = ParsedMessage(
        content="ab", tool_calls=(ToolCall(id="c", name="bash", arguments="{}"),), finish_reason="tool_calls"
    )
    writer = DIALECT.stream(head())
    data = b"".join(writer.delta(piece) for piece in pieces) + writer.end(CALL, message)
    items = json.loads(events(data)[-1][1])["response"]["output"]
    assert [item["type"] for item in items] == ["message", "function_call", "message"]
    assert read_stream("responses", data).message == message
    body = {"input": [{"role": "user", "content": "hi"}, *items]}
    assert normal_form(DIALECT.parse(json.dumps(body).encode(), Target()).messages[1]) == normal_form(reply_message(message))


@pytest.mark.parametrize("reason", ["length", "abort"])
def test_a_cut_turn_is_incomplete_and_so_is_its_last_item_alone(reason):
    calls = (ToolCall(id="c1", name="bash", arguments="{}"), ToolCall(id="c2", name="bash", arguments='{"a": "hel'))
    message = ParsedMessage(content="x", tool_calls=calls, finish_reason=reason)
    response = json.loads(events(streamed(message))[-1][1])["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in response["output"]] == ["completed", "completed", "incomplete"]
    assert response["output"][2]["arguments"] == '{"a": "hel'
    assert events(streamed(message))[-1][0] == "response.incomplete"


def test_a_stream_without_deltas_has_everything_in_its_end():
    message = ParsedMessage(reasoning="r", content="c", tool_calls=(ToolCall(id="c", name="bash", arguments=""),))
    assert read_stream("responses", DIALECT.stream(head()).end(CALL, message)) == read_whole(
        "responses", DIALECT.reply(head(), CALL, message)
    )


def test_an_empty_turn_is_an_empty_message():
    data = streamed(ParsedMessage())
    assert json.loads(events(data)[-1][1])["response"] == json.loads(DIALECT.reply(head(), CALL, ParsedMessage()))
    assert read_stream("responses", data).message == ParsedMessage()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError("9000 tokens do not fit into 8192", code="context_length_exceeded"), "context_length_exceeded"),
        (RequestError("slow down", status=429, code="busy"), "rate_limit_exceeded"),
        (RequestError("no engine", status=503, code="engine_unavailable"), "server_error"),
        (RequestError("nonsense", status=502, code="engine_error"), "server_error"),
    ],
)
@pytest.mark.parametrize("fed", [True, False])
def test_a_stream_that_fails_says_so_and_completes_nothing(error, code, fed):
    writer = DIALECT.stream(head())
    data = (writer.delta(StreamDelta(content="par")) if fed else b"") + writer.error(error)
    told = [json.loads(text) for _, text in events(data)]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert told[-1]["type"] == "response.failed"
    assert told[-1]["response"]["error"] == {"code": code, "message": str(error)}
    assert not any(event["type"] == "response.output_item.done" for event in told)
    assert sdk_events(data)[-1].response.status == "failed"


def test_line_breaks_that_clients_may_split_at_are_escaped():
    text = "a\u2028b\u2029c\x85d"
    data = streamed(ParsedMessage(content=text), 100)
    assert len(data.decode().splitlines()) == data.count(b"\n")
    assert read_stream("responses", data).message.content == text


def test_a_keepalive_does_not_disturb_the_client():
    data = streamed(ParsedMessage(content="ok"))
    noisy = DIALECT.keepalive + data.replace(b"\n\n", b"\n\n" + DIALECT.keepalive)
    assert [event.to_dict() for event in sdk_events(noisy)] == [event.to_dict() for event in sdk_events(data)]


def test_a_summary_is_one_item_and_a_silent_stream_before_it():
    message = ParsedMessage(reasoning="hm", content=" we did a \n")
    compacts = head([{"role": "user", "content": "hi"}, {"type": "compaction_trigger"}])
    writer = DIALECT.stream(compacts)
    pieces = [writer.delta(delta) for delta in by_character(message)]
    assert len(events(pieces[0])) == 2  # the opening
    assert set(pieces[1:]) == {DIALECT.keepalive}
    data = b"".join(pieces) + writer.end(CALL, message)
    told = [json.loads(text) for _, text in events(data)]
    assert [event["type"] for event in told[2:]] == [
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    (item,) = told[-1]["response"]["output"]
    assert (item["type"], item["id"]) == ("compaction", "cmp_5d1f_0")
    assert unseal(item["encrypted_content"]) == "we did a"
    assert json.loads(DIALECT.reply(compacts, CALL, message)) == told[-1]["response"]
    TypeAdapter(ResponseStreamEvent).validate_python(told[-2])


def test_logprobs_are_those_of_the_messages_own_tokens():
    tokens = [TokenText(text=text, logprob=-0.5) for text in ("<think>", "hm", "</think>", "caf", "é", " ok", "<end>")]
    message = ParsedMessage(reasoning="hm", content="café ok")
    wants = {"include": ["message.output_text.logprobs"]}
    assert head(**wants).request.wants_logprobs
    whole = json.loads(DIALECT.reply(head(**wants), CALL, message, tokens))
    told = [json.loads(text) for _, text in events(streamed(message, 1, tokens, **wants))]
    assert told[-1]["response"] == whole
    logprobs = whole["output"][1]["content"][0]["logprobs"]
    assert [one["token"] for one in logprobs] == ["caf", "é", " ok"]
    assert logprobs[1] == {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []}
    Response.model_validate(whole)
    items = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert items == [strip_logprobs(item) for item in whole["output"]]
    unmatched = json.loads(DIALECT.reply(head(**wants), CALL, ParsedMessage(content="other"), tokens))
    assert unmatched["output"][0]["content"][0]["logprobs"] == []
