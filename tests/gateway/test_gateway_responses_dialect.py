"""The Responses dialect: the request's own fields, the response object, errors, counts, the path of a compaction."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import CompactedResponse, Response

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, Target
from whippletree.gateway.dialects.responses import ResponsesDialect
from whippletree.gateway.dialects.responses_compaction import REQUEST, seal, unseal
from whippletree.types import Call, CallTimes, ParsedMessage, RequestedSampling, Sampling

DIALECT = ResponsesDialect()
COMPACT = DIALECT.target({"operation": "compact"}, {})
CALL = Call(
    call_id="c-5d1f", rollout_id="r", attempt=1, index=0, digest="d", prompt_tokens=7, sampled_tokens=5, finish_reason="stop",
    times=CallTimes(received=0.0), sampling=Sampling(), cached_tokens=3,
)  # fmt: skip


def parse(target=Target(), **body):  # noqa: B008 - immutable
    return DIALECT.parse(json.dumps({"input": "hi", **body}).encode(), target)


def reply(message, request, call=CALL, target=Target()):  # noqa: B008 - immutable
    head = ReplyHead(call_id="c-5d1f", model="policy", created=1700000000, request=request, target=target)
    return json.loads(DIALECT.reply(head, call, message))


def test_what_the_request_asks_for():
    request = parse(
        model="policy", stream=True, temperature=0, top_p=0.5, max_output_tokens=9, previous_response_id="resp_5d1f",
        include=["reasoning.encrypted_content", "message.output_text.logprobs"],
    )  # fmt: skip
    assert (request.model, request.stream, request.continues, request.wants_logprobs) == ("policy", True, "c-5d1f", True)
    assert request.requested == RequestedSampling(temperature=0.0, top_p=0.5, max_tokens=9)
    assert request.ignored == ()


def test_hints_that_are_not_used_are_named():
    hints = {
        "reasoning": {"effort": "low", "summary": "auto"}, "store": False, "metadata": {"a": "b"}, "prompt_cache_key": "k",
        "client_metadata": {"x": "y"}, "service_tier": "auto", "parallel_tool_calls": False, "truncation": "auto",
        "safety_identifier": "s", "user": "me", "top_logprobs": 3, "max_tool_calls": 4,
    }  # fmt: skip
    request = parse(**hints, text={"verbosity": "low"}, background=False, stream_options={"include_obfuscation": False})
    assert set(request.ignored) == set(hints)
    assert parse(**dict.fromkeys([*hints, "tools", "tool_choice", "text", "include", "stream", "conversation"])).ignored == ()
    many = parse(**{f"{place}-{'x' * 100}": 1 for place in range(500)}).ignored
    assert len(many) == 64
    assert max(map(len, many)) == 64


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        (None, None),
        ({"verbosity": "low"}, None),
        ({"format": {"type": "text"}}, None),
        ({"format": {"type": "json_object"}}, {"type": "object"}),
        ({"format": {"type": "json_schema", "name": "a", "strict": True, "schema": {"type": "array"}}}, {"type": "array"}),
    ],
)
def test_the_schema_of_a_reply(text, schema):
    request = parse(text=text)
    assert request.schema == schema
    Response.model_validate(reply(ParsedMessage(content="[]"), request))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"background": True}, "background is true"),
        ({"conversation": "conv_1"}, "conversation is not served"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt names a stored template"),
        ({"max_output_tokens": 0}, "max_output_tokens is 0"),
        ({"temperature": "hot"}, "$.temperature"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format of type 'json_schema'"),
        ({"text": {"format": {"type": "xml"}}}, "text.format of type 'xml'"),
        ({"instructions": ["a"]}, "$.instructions"),
        ({"stream": "maybe"}, "$.stream"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(body, says):
    with pytest.raises(RequestError) as error:
        parse(**body)
    assert error.value.status == 400
    assert says in str(error.value)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'{"input": "\xff"}', b'{"input": "\\ud800"}', b"null"])
def test_a_body_that_is_no_request_is_refused(body):
    with pytest.raises(RequestError) as error:
        DIALECT.parse(body, Target())
    assert error.value.status == 400


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.text(max_size=5)
    | st.sampled_from(["message", "user", "function_call"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "output", "summary", "tools", "name", "id"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(JSON, st.sampled_from(["input", "tools", "tool_choice", "text", "include", "previous_response_id", "instructions"]))
def test_any_json_is_parsed_or_refused(value, field):
    try:
        parse(**{field: value})
    except RequestError as error:
        assert error.status in (400, 404)


def test_a_response_has_what_the_official_type_needs_and_true_counts():
    request = parse(temperature=0.5, max_output_tokens=9, previous_response_id="resp_aa", tools=[], tool_choice="none")
    response = reply(ParsedMessage(content="ok"), request)
    Response.model_validate(response)
    assert (response["id"], response["status"], response["created_at"], response["model"]) == (
        "resp_5d1f", "completed", 1700000000, "policy",
    )  # fmt: skip
    assert (response["temperature"], response["max_output_tokens"], response["tool_choice"]) == (0.5, 9, "none")
    assert (response["previous_response_id"], response["error"], response["incomplete_details"]) == ("resp_aa", None, None)
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (7, 5, 12)
    assert usage["input_tokens_details"]["cached_tokens"] == 3


def test_a_forced_tool_is_shown_as_the_harness_named_it():
    tools = [{"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}]
    request = parse(tools=tools, tool_choice={"type": "custom", "name": "exec", "namespace": "functions"})
    response = reply(ParsedMessage(), request)
    assert response["tool_choice"] == {"type": "custom", "name": "exec"}
    Response.model_validate(response)


@pytest.mark.parametrize(
    ("reason", "status", "item"),
    [("stop", "completed", "completed"), ("tool_calls", "completed", "completed"), ("length", "incomplete", "incomplete"),
     ("abort", "incomplete", "incomplete"), ("error", "failed", "incomplete")],
)  # fmt: skip
def test_how_a_turn_ended(reason, status, item):
    response = reply(ParsedMessage(content="x", finish_reason=reason), parse())
    assert (response["status"], response["output"][0]["status"]) == (status, item)
    assert (response["error"] is not None) == (status == "failed")
    assert (response["incomplete_details"] is not None) == (status == "incomplete")
    Response.model_validate(response)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestError("x", status=401, code="invalid_api_key"), "authentication_error"),
        (RequestError("x", status=403, code="sealed"), "permission_error"),
        (RequestError("x", status=404, code="previous_response_not_found"), "not_found_error"),
        (RequestError("x", code="context_length_exceeded"), "invalid_request_error"),
        (RequestError("x", status=503, code="engine_unavailable"), "server_error"),
    ],
)
def test_errors(error, kind):
    assert json.loads(DIALECT.error(error)) == {"error": {"message": "x", "type": kind, "code": error.code, "param": None}}


def test_a_count_is_of_the_same_request():
    body = json.dumps({"input": "hi", "instructions": "be brief", "model": "policy"}).encode()
    assert DIALECT.parse_count(body, Target()) == DIALECT.parse(body, Target())
    assert json.loads(DIALECT.counted(42)) == {"object": "response.input_tokens", "input_tokens": 42}


def test_the_path_of_a_compaction_answers_with_what_the_user_said_and_a_summary():
    said = [{"role": "user", "content": "task"}, {"role": "assistant", "content": "done"}, {"role": "user", "content": "more"}]
    request = parse(COMPACT, input=[{"type": "compaction", "encrypted_content": seal("old")}, *said], stream=True)
    assert request.messages[-1] == REQUEST
    assert not request.stream
    response = reply(ParsedMessage(content="we did it"), request, target=COMPACT)
    CompactedResponse.model_validate(
        {**response, "output": [item for item in response["output"] if item.get("role") != "user"]}
    )
    *kept, summary = response["output"]
    assert [(item["role"], item["content"]) for item in kept] == [
        ("user", [{"type": "input_text", "text": "task"}]),
        ("user", [{"type": "input_text", "text": "more"}]),
    ]
    assert unseal(summary["encrypted_content"]) == "we did it"
    following = parse(input=[*response["output"], {"role": "user", "content": "go on"}])
    assert [message.role for message in following.messages] == ["user"] * 4
    assert following.ignored == ()
    assert parse(COMPACT, input=None, previous_response_id="resp_aa").messages == (REQUEST,)


def test_paths():
    assert {"/v1/responses", "/responses", "/v1/responses/{operation:compact}"} <= set(DIALECT.generate_paths)
    assert "/v1/responses/input_tokens" in DIALECT.count_paths
    assert DIALECT.target({}, {}) == Target()
