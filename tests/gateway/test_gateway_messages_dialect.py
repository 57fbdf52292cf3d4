"""The Messages dialect: requests, whole replies, errors, counts, model lists. Pure functions."""

import base64
import hashlib
import json

import anthropic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import Counts, read_whole
from turns import CALL

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, Target, signatures
from whippletree.gateway.dialects.messages import MessagesDialect
from whippletree.gateway.lineage import normal_form, reply_message
from whippletree.types import Media, Message, ParsedMessage, RequestedSampling, ToolCall

DIALECT = MessagesDialect()
HEAD = ReplyHead(call_id="c-12", model="policy", created=1700000000, prompt_tokens=7)
HI = [{"role": "user", "content": "hi"}]


def parse(**body):
    return DIALECT.parse(json.dumps({"messages": HI, "max_tokens": 9, **body}).encode(), Target())


def messages(*content, **body):
    return parse(messages=list(content), **body).messages


def refusal(body):
    with pytest.raises(RequestError) as error:
        DIALECT.parse(body if isinstance(body, bytes) else json.dumps({"messages": HI, **body}).encode(), Target())
    assert error.value.status == 400
    return str(error.value)


# --- what a request becomes ---------------------------------------------------------------------------------------------


def test_a_conversation_with_tools():
    sent = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": signatures.sign("c-5")},
            {"type": "text", "text": "I look"},
            {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "é"}},
            {"type": "tool_use", "id": "t2", "name": "pwd", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t2", "content": [
                {"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
            {"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": True},
            {"type": "text", "text": "go on"}]},
    ]  # fmt: skip
    assert messages(*sent, system="be brief") == (
        Message(role="system", content="be brief"),
        Message(role="user", content="a\nb"),
        Message(role="assistant", content="I look", reasoning="hm", signature="c-5", tool_calls=(
            ToolCall(id="t1", name="ls", arguments='{"path": "é"}'), ToolCall(id="t2", name="pwd", arguments="{}"))),
        Message(role="tool", content="x\ny", tool_call_id="t2", name="pwd"),
        Message(role="tool", content="no", tool_call_id="t1", name="ls", is_error=True),
        Message(role="user", content="go on"),
    )  # fmt: skip


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_text_and_one_text_block_are_the_same(role):
    block = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    before = [{"role": "user", "content": "hi"}]
    plain = messages(*before, {"role": role, "content": "x"})
    assert messages(*before, {"role": role, "content": [block]}) == plain
    assert messages(*before, system="x") == messages(*before, system=[block])
    result = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
    flipped = {**result, "content": [block], "cache_control": {"type": "ephemeral"}}
    assert messages({"role": "user", "content": [result]}) == messages({"role": "user", "content": [flipped]})


def test_what_is_empty_or_null_is_an_empty_text():
    for nothing in (None, "", []):
        assert messages({"role": "user", "content": nothing}) == (Message(role="user"),)
        assert messages(*HI, {"role": "assistant", "content": nothing})[1:] == (Message(role="assistant"),)
    result = {"type": "tool_result", "tool_use_id": "t", "content": None}
    assert messages({"role": "user", "content": [result]}) == (Message(role="tool", tool_call_id="t"),)
    assert messages(*HI, system=[]) == messages(*HI, system=None) == (Message(role="user", content="hi"),)


def test_the_billing_line_is_no_part_of_the_system_prompt():
    line = "x-anthropic-billing-header: cc_version=2.1.332.17b; cc_entrypoint=sdk-cli;"
    blocks = [{"type": "text", "text": line}, {"type": "text", "text": "You are an agent."}]
    expected = messages(*HI, system="You are an agent.")
    assert messages(*HI, system=blocks) == expected
    assert messages(*HI, system=f"{line}\nYou are an agent.") == expected
    assert messages(*HI, system=line) == messages(*HI)


def test_a_system_message_in_the_conversation_is_text_of_the_user_message_before_it():
    task, agents = {"role": "user", "content": "task"}, {"role": "system", "content": "agents: a"}
    marked = "<system-reminder>\nagents: a\n</system-reminder>"
    assert messages(task, agents) == (Message(role="user", content=f"task\n{marked}"),)
    answer = {"role": "assistant", "content": "ok"}
    assert messages(task, answer, agents)[2] == Message(role="user", content=marked)
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]}
    assert messages(task, answer, result, agents)[2:] == (
        Message(role="tool", content="r", tool_call_id="t"), Message(role="user", content=marked))  # fmt: skip
    assert messages(task, {"role": "system", "content": marked}) == messages(task, agents)
    assert messages(agents, task, system="base")[0] == Message(role="system", content="base\nagents: a")
    assert messages(agents, task)[0] == Message(role="system", content="agents: a")


def test_pictures_and_documents_are_media_with_a_placeholder():
    picture = base64.b64encode(b"png bytes").decode()
    sent = {"role": "user", "content": [
        {"type": "text", "text": "see"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}},
        {"type": "document", "title": "T",
         "source": {"type": "url", "url": "https://a/b.pdf", "media_type": "application/pdf"}},
        {"type": "document", "context": "C", "source": {"type": "text", "media_type": "text/plain", "data": "body"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "inside"}]}},
        {"type": "search_result", "source": "https://s", "title": "R", "content": [
            {"type": "text", "text": "found"}]}]}  # fmt: skip
    (message,) = messages(sent)
    assert message.content == "\n".join(
        ["see", "[image image/png]", "T", "[file application/pdf]", "C", "body", "inside", "R", "https://s", "found"]
    )
    image, file = message.media
    assert image == Media(
        kind="image", media_type="image/png", digest=hashlib.sha256(b"png bytes").hexdigest(), size=len(picture)
    )
    assert (file.kind, file.media_type) == ("file", "application/pdf")
    (result,) = messages({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": sent["content"][:2]}]})  # fmt: skip
    assert (result.content, result.media) == ("see\n[image image/png]", (image,))


def test_thinking_that_was_dropped_leaves_its_mark():
    ours, foreign = signatures.sign("c-9"), "EqQBCgIYAhIM"
    sent = [
        {"type": "redacted_thinking", "data": foreign},
        {"type": "thinking", "thinking": "", "signature": ours},
        {"type": "text", "text": "x"},
    ]
    assert messages(*HI, {"role": "assistant", "content": sent})[1] == Message(role="assistant", content="x", signature="c-9")
    sent = [{"type": "thinking", "thinking": "t", "signature": foreign}, {"type": "redacted_thinking", "data": ours}]
    assert messages(*HI, {"role": "assistant", "content": sent})[1] == Message(role="assistant", reasoning="t", signature="c-9")


def test_blocks_of_other_servers_fail_nothing_and_are_named():
    request = parse(messages=[
        {"role": "user", "content": [
            {"type": "container_upload", "file_id": "f"}, {"type": "novelty", "text": 5}, {"type": "text", "text": "x"},
            {"type": "image", "source": {"type": "hologram"}}]},
        {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": {"type": "error", "error_code": "x"}},
            {"type": "text", "text": "found", "citations": [{"type": "char_location"}]}]},
        {"role": "user", "content": "and?"}])  # fmt: skip
    assert request.messages == (
        Message(role="user", content="[container_upload]\n[novelty]\nx\n[image]"),
        Message(role="assistant", content="found"),
        Message(role="user", content="and?"),
    )
    assert request.ignored == (
        "container_upload", "novelty", "image.hologram", "server_tool_use", "web_search_tool_result")  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "arguments"),
    [
        ({"a": 1, "b": [1.0, "é"]}, '{"a": 1, "b": [1.0, "é"]}'),
        ({}, "{}"),
        (None, "{}"),
        ('{"a', '{"a'),
        ({"INVALID_JSON": '{"a'}, '{"a'),
        ({"__unparsedToolInput": {"raw": '{"a', "len": 3}}, '{"a'),
        ({"INVALID_JSON": "x", "b": 1}, '{"INVALID_JSON": "x", "b": 1}'),
    ],
)
def test_arguments_come_back_as_they_were_sampled(sent, arguments):
    block = {"type": "tool_use", "id": "t", "name": "ls", "input": sent}
    (call,) = messages(*HI, {"role": "assistant", "content": [block]})[1].tool_calls
    assert call.arguments == arguments


def test_what_is_accepted_and_not_used_is_named_once():
    request = parse(
        system=[{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}], top_k=5, service_tier="auto",
        thinking={"type": "enabled", "budget_tokens": 1024}, context_management={"edits": []}, metadata={"user_id": "u"},
        betas=["x"], container="c", mcp_servers=[], cache_control={"type": "ephemeral"}, output_config={"effort": "high"},
        temperature=0.5, top_p=0.9, stop_sequences=["END"], new_field={"a": 1}, inference_geo=None, model="m", stream=True,
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    )  # fmt: skip
    assert set(request.ignored) == {
        "cache_control", "top_k", "service_tier", "thinking", "context_management", "metadata", "betas", "container",
        "mcp_servers", "output_config.effort", "new_field", "disable_parallel_tool_use"}  # fmt: skip
    assert len(set(request.ignored)) == len(request.ignored)
    assert request.extra == {"new_field": {"a": 1}}
    assert request.requested == RequestedSampling(temperature=0.5, top_p=0.9, max_tokens=9, stop=("END",))
    assert (request.model, request.stream, request.tool_choice) == ("m", True, "auto")
    assert parse(messages=[*HI, {"role": "assistant", "content": "{"}]).ignored == ("prefill",)


def test_structured_output_in_its_two_places():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    wanted = {"type": "json_schema", "schema": schema}
    assert parse(output_format=wanted).schema == parse(output_config={"format": wanted}).schema == schema
    assert parse(output_config={"format": wanted}).ignored == ()
    assert parse().schema is None


def test_a_count_needs_no_limits():
    request = DIALECT.parse_count(json.dumps({"model": "m", "messages": HI, "tools": []}).encode(), Target())
    assert request.messages == (Message(role="user", content="hi"),)
    assert json.loads(DIALECT.counted(12)) == {"input_tokens": 12}


# --- what is refused ----------------------------------------------------------------------------------------------------


def one(block, role="user"):
    return {"messages": [*HI, {"role": role, "content": [block]}]}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": []}, "messages: at least one message is required"),
        ({"messages": [{"role": "system", "content": ""}]}, "messages: at least one message is required"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role: 'robot'"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content: Expected"),
        ({"messages": "x"}, "messages: Expected `array`"),
        ({"system": 5}, "system: Expected"),
        ({"system": [{"type": "text"}]}, "system.0: "),
        (one({"text": "x"}), "messages.1.content.0: "),
        (one({"type": "text", "text": 5}), "messages.1.content.0.text: Expected `str`"),
        (one(5), "messages.1.content.0: Expected `object`"),
        (one({"type": "tool_result", "content": "x"}), "messages.1.content.0: "),
        (one({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text"}]}), "messages.1.content.0.content.0: "),
        (one({"type": "tool_use", "id": "t", "name": "ls", "input": {}}), "messages.1.content.0: a tool_use outside"),
        (one({"type": "tool_result", "tool_use_id": "t"}, "assistant"), "messages.1.content.0: a tool_result in an assistant"),
        (one({"type": "tool_use", "id": "t", "name": "ls", "input": [1]}, "assistant"), "messages.1.content.0.input: "),
        (one({"type": "image", "source": {"type": "base64", "data": "?"}}), "messages.1.content.0.source.data is not base64"),
        ({"max_tokens": 0}, "max_tokens: 0"),
        ({"max_tokens": "many"}, "max_tokens: Expected `int"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences.1: "),
        ({"output_format": {"type": "grammar"}}, "output_format.type: 'grammar'"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema: "),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type: 'sometimes'"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name: 'x'"),
        ({"tools": [{"description": "d"}]}, "tools.0.name: "),
        ({"tools": [{"name": "a"}, {"name": "a"}]}, "tools.1.name: 'a' is there twice"),
        ({"tools": [{"name": "a", "input_schema": "x"}]}, "tools.0.input_schema: Expected `object"),
    ],
)  # fmt: skip
def test_what_is_malformed_is_refused_with_its_place(body, says):
    assert refusal(body).startswith(says)


def test_bodies_that_are_no_json_are_refused():
    deep = b'{"messages": [{"role": "user", "content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}"
    for body in (b"", b"{", b"[]", b'\xff{"messages": []}', b'{"messages": [{"role": "user", "content": "\xff"}]}', deep):
        assert refusal(body)


# --- replies ------------------------------------------------------------------------------------------------------------

CALLS = st.lists(st.tuples(st.text(max_size=6), st.sampled_from(["", "{}", '{"a": "\\u00e9"}', '{"a', "[1]", "x"])), max_size=3)


@settings(max_examples=150)
@given(st.text(max_size=20), st.text(max_size=20), CALLS, st.sampled_from(["stop", "length"]))
def test_a_reply_that_comes_back_is_the_turn_that_was_sampled(content, reasoning, calls, finish):
    tool_calls = tuple(ToolCall(id=f"call_{n}", name=name, arguments=text) for n, (name, text) in enumerate(calls))
    message = ParsedMessage(content=content, reasoning=reasoning, tool_calls=tool_calls, finish_reason=finish)
    reply = DIALECT.reply(HEAD, CALL, message)
    anthropic.types.Message.model_validate_json(reply)
    assert DIALECT.reply(HEAD, CALL, message) == reply
    echoed = messages(*HI, {"role": "assistant", "content": json.loads(reply)["content"]})[1]
    assert normal_form(echoed) == normal_form(reply_message(message))
    assert echoed.reasoning == reasoning
    assert echoed.signature == ("c-12" if reasoning else "")
    read = read_whole("messages", reply)
    assert (read.message.content, read.message.reasoning) == (content, reasoning)
    assert [call.arguments for call in read.message.tool_calls] == [text or "{}" for _, text in calls]


@pytest.mark.parametrize(
    ("message", "stop", "sequence"),
    [
        (ParsedMessage(content="x"), "end_turn", None),
        (ParsedMessage(content="x", stop_sequence="END"), "stop_sequence", "END"),
        (ParsedMessage(content="x", finish_reason="length"), "max_tokens", None),
        (ParsedMessage(tool_calls=(ToolCall(id="c", name="ls", arguments="{"),), finish_reason="length"), "max_tokens", None),
        (
            ParsedMessage(tool_calls=(ToolCall(id="c", name="ls", arguments="{}"),), finish_reason="tool_calls"),
            "tool_use",
            None,
        ),
        (ParsedMessage(content="x", finish_reason="abort"), "max_tokens", None),
    ],
)
def test_why_a_turn_ended(message, stop, sequence):
    reply = json.loads(DIALECT.reply(HEAD, CALL, message))
    assert (reply["stop_reason"], reply["stop_sequence"]) == (stop, sequence)


def test_counts_are_true_and_never_null():
    reply = DIALECT.reply(HEAD, CALL, ParsedMessage(content="x"))
    assert json.loads(reply)["usage"] == {
        "input_tokens": 4, "output_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 0,
        "service_tier": "standard"}  # fmt: skip
    assert read_whole("messages", reply).counts == Counts(7, 3, 5)


def test_only_a_turn_with_nothing_in_it_has_no_blocks():
    assert json.loads(DIALECT.reply(HEAD, CALL, ParsedMessage()))["content"] == []
    thought = json.loads(DIALECT.reply(HEAD, CALL, ParsedMessage(reasoning="hm", finish_reason="length")))
    assert thought["content"] == [{"type": "thinking", "thinking": "hm", "signature": signatures.sign("c-12")}]


# --- errors and lists ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"), (404, "not_found_error"),
        (405, "invalid_request_error"), (413, "request_too_large"), (429, "rate_limit_error"), (500, "api_error"),
        (502, "api_error"), (503, "overloaded_error"), (529, "overloaded_error"), (504, "timeout_error"),
    ],
)  # fmt: skip
def test_an_error_has_anthropics_form(status, kind):
    error = json.loads(DIALECT.error(RequestError("no", "do so", status=status)))
    assert error == {"type": "error", "error": {"type": kind, "message": "no (do so)"}, "request_id": None}


@pytest.mark.parametrize(
    "cause",
    [
        "the prompt has 9000 tokens; the model's maximum context length is 8192",
        "This model's maximum context length is 8192 tokens. However, your request has 9000 input tokens.",
    ],
)
def test_a_prompt_that_is_too_long_is_told_in_the_words_that_claude_code_knows(cause):
    error = json.loads(DIALECT.error(RequestError(cause, "shorten", status=400, code="context_length_exceeded")))
    assert error["error"] == {"type": "invalid_request_error", "message": "prompt is too long: 9000 tokens > 8192 maximum"}
    vague = json.loads(DIALECT.error(RequestError("it is full", status=400, code="context_length_exceeded")))
    assert vague["error"]["message"] == "prompt is too long: it is full"


def test_models_in_anthropics_form():
    page = json.loads(DIALECT.models(("policy",), 4096))
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "policy", "policy")
    assert page["data"] == [json.loads(DIALECT.model("policy", 4096))]
    model = anthropic.types.ModelInfo.model_validate(page["data"][0])
    assert (model.id, model.display_name, model.type, model.max_input_tokens) == ("policy", "policy", "model", 4096)
