"""The chat-completions dialect reads what clients send: every form of message, tool, choice and field."""

import base64
import hashlib
import json

import msgspec
import pytest

from whippletree.errors import RequestError
from whippletree.gateway.dialects import Target, signatures
from whippletree.gateway.dialects.chat import HINTS, KNOWN, ChatDialect
from whippletree.types import Media, Message, ToolCall, ToolSpec

DIALECT = ChatDialect()
PIXEL = base64.b64encode(b"pixels").decode()


def parse(**body):
    return DIALECT.parse(json.dumps({"messages": [{"role": "user", "content": "hi"}], **body}).encode(), Target())


def refusal(**body):
    with pytest.raises(RequestError) as error:
        parse(**body)
    assert error.value.status == 400
    return str(error.value)


def function(name="bash", **fields):
    return {"type": "function", "function": {"name": name, **fields}}


def test_forms_that_clients_use():
    request = parse(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "bash", "arguments": {"command": "ls"}}}]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "out"}]},
            {"role": "assistant", "content": None, "refusal": "no", "name": "me"},
            {"role": "system", "content": "late"},
        ],
        tools=None, stream=None, temperature=None, stop="END", max_completion_tokens=9, seed=4, top_p=0.5,
    )  # fmt: skip
    assert request.messages == (
        Message(role="system", content="ab"),
        Message(role="assistant", reasoning="hm", tool_calls=(ToolCall(id="c", name="bash", arguments='{"command": "ls"}'),)),
        Message(role="tool", content="out", tool_call_id="c"),
        Message(role="assistant", content="no", name="me"),
        Message(role="system", content="late"),
    )
    asked = request.requested
    assert (asked.stop, asked.max_tokens, asked.seed, asked.top_p, asked.temperature) == (("END",), 9, 4, 0.5, None)
    assert (request.tool_choice, request.forced_tool, request.schema, request.ignored, request.extra) == (
        "auto",
        "",
        None,
        (),
        {},
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "hm, well"},
        {"reasoning": "hm, well"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm, "}, {"type": "reasoning.summary", "summary": "well"}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "hm, well", "signature": "foreign"}]},
        {"content": [{"type": "thinking", "thinking": "hm, well"}, {"type": "text", "text": "so"}]},
    ],
)
def test_reasoning_comes_back_under_any_of_its_names(fields):
    request = parse(messages=[{"role": "assistant", "content": "so", **fields}])
    assert request.messages == (Message(role="assistant", content="so", reasoning="hm, well"),)


def test_our_mark_on_reasoning_is_read_back():
    blocks = [{"type": "thinking", "thinking": "", "signature": signatures.sign("c-77")}]
    assert parse(messages=[{"role": "assistant", "thinking_blocks": blocks}]).messages[0].signature == "c-77"


@pytest.mark.parametrize(
    ("part", "media", "text"),
    [
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}, ("image", "image/png", b"pixels"),
         "[image image/png]"),
        ({"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}}, ("image", "image/*", b"https://x/y.png"),
         "[image image/*]"),
        ({"type": "input_audio", "input_audio": {"data": PIXEL, "format": "wav"}}, ("audio", "audio/wav", b"pixels"),
         "[audio audio/wav]"),
        ({"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PIXEL}"}},
         ("file", "application/pdf", b"pixels"), "[file application/pdf]"),
        ({"type": "file", "file": {"file_id": "file-1"}}, ("file", "file/*", b"file-1"), "[file file/*]"),
    ],
)  # fmt: skip
def test_what_is_no_text_leaves_a_placeholder_and_a_digest(part, media, text):
    (message,) = parse(messages=[{"role": "user", "content": [{"type": "text", "text": "see "}, part]}]).messages
    kind, media_type, content = media
    assert message.content == "see " + text
    (kept,) = message.media
    assert isinstance(kept, Media)
    assert (kept.kind, kept.media_type, kept.digest) == (kind, media_type, hashlib.sha256(content).hexdigest())
    assert kept.size > 0


def test_a_part_of_an_unknown_type_fails_nothing_and_is_named():
    request = parse(messages=[{"role": "user", "content": [{"type": "hologram", "data": 1}]}])
    assert (request.messages[0].content, request.ignored) == ("[hologram]", ("hologram",))


def test_old_functions_are_tools():
    request = parse(
        messages=[
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "function_call": {"name": "bash", "arguments": "{}"}},
            {"role": "function", "name": "bash", "content": "out"},
        ],
        functions=[{"name": "bash", "parameters": {"type": "object"}}],
        function_call={"name": "bash"},
    )
    assert request.messages[1:] == (
        Message(role="assistant", tool_calls=(ToolCall(id="call_0", name="bash", arguments="{}"),)),
        Message(role="tool", content="out", tool_call_id="call_0", name="bash"),
    )
    assert request.tools == (ToolSpec(name="bash", parameters={"type": "object"}, kind="legacy"),)
    assert (request.tool_choice, request.forced_tool) == ("required", "bash")
    assert parse(functions=[{"name": "bash"}], function_call="none").tool_choice == "none"


def test_a_free_text_tool_is_a_function_with_one_string():
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/"}}
    request = parse(
        messages=[{"role": "assistant", "tool_calls": [
            {"id": "c", "type": "custom", "custom": {"name": "apply_patch", "input": 'say "é"'}}]}],
        tools=[{"type": "custom", "custom": {"name": "apply_patch", "description": "edit", "format": grammar}}],
    )  # fmt: skip
    (tool,) = request.tools
    assert tool.kind == "custom"
    assert tool.parameters["required"] == ["input"]
    assert tool.description == "edit\n\nThe input follows this lark grammar:\nstart: /.+/"
    assert json.loads(request.messages[0].tool_calls[0].arguments) == {"input": 'say "é"'}


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ("none", ("none", "", ())),
        ("required", ("required", "", ())),
        ({"type": "function", "function": {"name": "bash"}}, ("required", "bash", ())),
        ({"type": "function", "name": "bash"}, ("required", "bash", ())),
        ({"type": "function"}, ("required", "", ())),
        ({"type": "custom", "custom": {"name": "bash"}}, ("required", "bash", ())),
        ({"type": "web_search"}, ("auto", "", ("tool_choice",))),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function()]}}, ("required", "bash", ())),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function()]}}, ("auto", "", ("allowed_tools",))),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function(), function("ls")]}},
         ("required", "", ("allowed_tools",))),
    ],
)  # fmt: skip
def test_tool_choice(choice, read):
    request = parse(tools=[function(), function("ls")], tool_choice=choice)
    assert (request.tool_choice, request.forced_tool, request.ignored) == read


def test_a_choice_without_tools_is_named_and_not_obeyed():
    request = parse(tool_choice="required")
    assert (request.tool_choice, request.ignored) == ("auto", ("tool_choice",))


def test_tools_that_a_server_would_run_are_not_offered_and_named():
    request = parse(tools=[{"type": "web_search"}, function(description="run", parameters={"type": "object"})])
    assert request.tools == (ToolSpec(name="bash", description="run", parameters={"type": "object"}),)
    assert request.ignored == ("tools.web_search",)


@pytest.mark.parametrize(
    ("asked", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "array"}, "strict": True}}, {"type": "array"}),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, {"type": "object"}),
    ],
)
def test_response_format(asked, schema):
    assert parse(response_format=asked).schema == schema


def test_every_hint_is_accepted_and_named_and_what_is_unknown_is_kept():
    request = parse(**dict.fromkeys(HINTS, 1), chat_colour={"a": [1]}, null_field=None)
    assert set(request.ignored) == {*HINTS, "chat_colour"}
    assert request.extra == {"chat_colour": {"a": [1]}}
    assert not HINTS & KNOWN


def test_logprobs_and_usage_are_asked_for():
    request = parse(logprobs=True, top_logprobs=2, stream=True, stream_options={"include_usage": True})
    assert (request.wants_logprobs, request.include_usage, request.stream) == (True, True, True)
    assert request.ignored == ("top_logprobs",)
    assert not parse(logprobs=None, stream_options=None).wants_logprobs


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"n": 2}, "n is 2"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"messages[0].role is 'robot'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0] has no image_url"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0] has no text"),
        ({"messages": [{"role": "user", "content": [
            {"type": "input_audio", "input_audio": {"data": "%%"}}]}]}, "content[0].input_audio.data is not base64"),
        ({"messages": [{"role": "user", "content": 3}]}, "$.messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "messages[0].tool_calls[0] has no function"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema is missing"),
        ({"tool_choice": "sometimes"}, "tool_choice is 'sometimes'"),
        ({"tools": [{"type": "function"}]}, "tools[0].function is missing"),
        ({"tools": [function()], "tool_choice": function("other")}, "tool_choice names 'other'"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"stop": [1]}, "$.stop"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_named(body, says):
    assert says in refusal(**body)


def test_bodies_that_are_no_json_are_refused():
    deep = b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for body in (b"", b"{", b"[]", b'{"messages": "x"}', b'\xff{"messages": []}', deep):
        with pytest.raises(RequestError, match="cannot be read"):
            DIALECT.parse(body, Target())


def test_an_error_has_openais_form():
    error = msgspec.json.decode(DIALECT.error(RequestError("no", "do so", status=503, code="engine_unavailable")))
    assert error == {"error": {"message": "no (do so)", "type": "server_error", "code": "engine_unavailable", "param": None}}


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        ("the prompt has 5000 tokens; the model's maximum context length is 4096",
         "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens. "
         "Please reduce the length of the messages."),
        ("vllm answered 400: too long", "This model's maximum context length is smaller than this request: vllm answered 400"),
    ],
)  # fmt: skip
def test_a_prompt_that_does_not_fit_is_told_in_openais_words(cause, says):
    error = json.loads(DIALECT.error(RequestError(cause, code="context_length_exceeded")))["error"]
    assert error["message"].startswith(says)
    assert (error["code"], error["type"], error["param"]) == ("context_length_exceeded", "invalid_request_error", "messages")
