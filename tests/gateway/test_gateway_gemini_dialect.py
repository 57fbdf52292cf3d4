"""The Gemini dialect reads what clients send: addresses, contents, tools, settings, in both spellings."""

import base64
import hashlib
import json
import re

import pytest

from whippletree.errors import RequestError
from whippletree.gateway.dialects import Target, signatures
from whippletree.gateway.dialects.gemini import ANY_JSON, GeminiDialect
from whippletree.types import Message, ToolCall, ToolSpec

DIALECT = GeminiDialect()
PIXEL = base64.b64encode(b"pixels\xff\xfe").decode()
HI = [{"role": "user", "parts": [{"text": "hi"}]}]


def parse(**body):
    return DIALECT.parse(json.dumps({"contents": HI, **body}).encode(), Target(model="m"))


def messages(*contents, **body):
    return parse(contents=list(contents), **body).messages


def refusal(**body):
    with pytest.raises(RequestError) as error:
        parse(**body)
    assert error.value.status == 400
    return str(error.value)


# --- addresses -----------------------------------------------------------------------------------------------------------


def pattern(path):
    """An aiohttp route pattern as the regular expression that it stands for."""
    return re.compile(re.sub(r"\{(\w+):([^}]*)\}", r"(?P<\1>\2)", path))


@pytest.mark.parametrize(
    ("path", "query", "target"),
    [
        ("/v1beta/models/gemini-3-pro:generateContent", {}, Target(model="gemini-3-pro", stream=False, sse=False)),
        ("/v1beta/models/m:streamGenerateContent", {"alt": "sse"}, Target(model="m", stream=True, sse=True)),
        ("/v1alpha/models/m:streamGenerateContent", {"$alt": "sse"}, Target(model="m", stream=True, sse=True)),
        ("/v1/tunedModels/mine:streamGenerateContent", {}, Target(model="tunedModels/mine", stream=True, sse=False)),
        ("/v1beta1/projects/p/publishers/google/models/m:generateContent", {}, Target(model="m", stream=False, sse=False)),
        ("/models/m:generateContent", {}, Target(model="m", stream=False, sse=False)),
    ],
)  # fmt: skip
def test_addresses_name_model_and_transport(path, query, target):
    (match,) = [match for one in DIALECT.generate_paths if (match := pattern(one).fullmatch(path))]
    assert DIALECT.target(match, query) == target
    assert not any(pattern(one).fullmatch(path) for one in DIALECT.count_paths)


def test_counting_has_an_address_of_its_own():
    path = "/v1beta/models/m:countTokens"
    assert pattern(DIALECT.generate_paths[0]).fullmatch(path) is None
    assert DIALECT.target(pattern(DIALECT.count_paths[0]).fullmatch(path), {}).model == "m"


def test_a_method_that_is_not_served_is_a_404_that_names_it():
    match = pattern(DIALECT.generate_paths[0]).fullmatch("/v1beta/models/m:embedContent")
    with pytest.raises(RequestError, match="'embedContent' is not served") as error:
        DIALECT.target(match, {})
    assert error.value.status == 404


def test_the_address_decides_on_model_and_transport():
    request = DIALECT.parse(json.dumps({"contents": HI, "model": "models/other"}).encode(), Target(model="m", stream=True))
    assert (request.model, request.stream) == ("m", True)
    assert DIALECT.parse(json.dumps({"contents": HI, "model": "models/other"}).encode(), Target()).model == "other"


# --- contents ------------------------------------------------------------------------------------------------------------


def test_contents_become_messages():
    read = messages(
        {"parts": [{"text": "one"}, {"text": "two"}]},
        {"role": "model", "parts": [
            {"text": "hm", "thought": True}, {"text": "I "}, {"text": "look"},
            {"functionCall": {"id": "c1", "name": "ls", "args": {"p": 1}}, "thoughtSignature": signatures.sign("c-7")},
            {"functionCall": {"name": "pwd"}, "thoughtSignature": "Zm9yZWlnbg=="}]},
        {"role": "user", "parts": [
            {"functionResponse": {"id": "c1", "name": "ls", "response": {"output": "a"}}},
            {"functionResponse": {"name": "pwd", "response": {"error": "denied"}}},
            {"text": "go on"}]},
        systemInstruction={"parts": [{"text": "be brief"}, {"text": "be kind"}]},
    )  # fmt: skip
    assert read == (
        Message(role="system", content="be brief\nbe kind"),
        Message(role="user", content="one\ntwo"),
        Message(
            role="assistant", content="I look", reasoning="hm", signature="c-7",
            tool_calls=(ToolCall(id="c1", name="ls", arguments='{"p": 1}'), ToolCall(id="call_1", name="pwd", arguments="{}")),
        ),
        Message(role="tool", content="a", tool_call_id="c1", name="ls"),
        Message(role="tool", content="denied", tool_call_id="call_1", name="pwd", is_error=True),
        Message(role="user", content="go on"),
    )  # fmt: skip


def test_model_contents_in_a_row_are_one_turn():
    """Google's clients keep one content for each chunk of a stream."""
    chunks = [{"role": "model", "parts": [part]} for part in (
        {"text": "hm", "thought": True}, {"text": "Hel"}, {"text": "lo"},
        {"functionCall": {"name": "a", "args": {}}, "thoughtSignature": signatures.sign("c-1")},
        {"functionCall": {"name": "a", "args": {}}},
    )]  # fmt: skip
    turn = messages(HI[0], *chunks)[1:]
    assert turn == (
        Message(
            role="assistant", content="Hello", reasoning="hm", signature="c-1",
            tool_calls=(ToolCall(id="call_0", name="a", arguments="{}"), ToolCall(id="call_1", name="a", arguments="{}")),
        ),
    )  # fmt: skip


def test_user_contents_in_a_row_stay_apart_and_none_is_lost():
    assert [message.content for message in messages(HI[0], HI[0], {"parts": []})] == ["hi", "hi", ""]


@pytest.mark.parametrize(
    ("response", "text", "failed"),
    [
        ({"output": "a"}, "a", False),
        ({"result": "a"}, "a", False),
        ({"name": "ls", "content": "a"}, "a", False),
        ({"output": {"b": [1]}}, '{"b": [1]}', False),
        ({"error": "no"}, "no", True),
        ({"error": "no", "code": 3}, '{"error": "no", "code": 3}', True),
        ({"output": "a", "error": ""}, '{"output": "a", "error": ""}', False),
        ({"files": ["a"], "more": False}, '{"files": ["a"], "more": false}', False),
        ({}, "", False),
    ],
)
def test_what_a_function_answered_is_text(response, text, failed):
    call = {"role": "model", "parts": [{"functionCall": {"name": "ls"}}]}
    answer = messages(HI[0], call, {"role": "function", "parts": [{"functionResponse": {"name": "ls", "response": response}}]})[
        -1
    ]
    assert (answer.role, answer.content, answer.is_error, answer.tool_call_id) == ("tool", text, failed, "call_0")


def test_media_leave_a_placeholder_and_a_digest():
    url_safe = base64.urlsafe_b64encode(b"pixels\xff\xfe").decode().rstrip("=")
    call = {"role": "model", "parts": [{"functionCall": {"name": "look"}}]}
    pictures = [{"inlineData": {"mimeType": "image/png", "data": data}} for data in (PIXEL, url_safe)]
    read = messages(
        {"parts": [{"text": "see"}, *pictures, {"fileData": {"mimeType": "audio/wav", "fileUri": "gs://a"}}]},
        call,
        {"parts": [{"functionResponse": {"name": "look", "response": {"output": "done"}, "parts": pictures[:1]}}]},
    )
    assert read[0].content == "see\n[image image/png]\n[image image/png]\n[audio audio/wav]"
    digests = [media.digest for media in read[0].media]
    assert digests == [hashlib.sha256(b"pixels\xff\xfe").hexdigest()] * 2 + [hashlib.sha256(b"gs://a").hexdigest()]
    assert (read[2].content, read[2].media) == ("done\n[image image/png]", read[0].media[:1])


def test_code_that_the_model_ran_is_text():
    parts = [
        {"executableCode": {"language": "PYTHON", "code": "1+1"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
    ]
    assert messages(HI[0], {"role": "model", "parts": parts})[1].content == "```python\n1+1\n```\n```output\n2\n```\n"


def test_a_part_of_an_unknown_kind_fails_nothing_and_is_named():
    request = parse(contents=[{"parts": [{"text": "a", "videoMetadata": {"fps": 1}}, {"hologram": {}}]}])
    assert (request.messages[0].content, request.ignored) == ("a\n", ("contents.parts",))


# --- tools and settings --------------------------------------------------------------------------------------------------


def test_tools_and_choice():
    declared = [
        {"name": "a", "description": "A", "parameters": {"type": "OBJECT", "properties": {"x": {"type": "STRING"}}}},
        {"name": "b", "parametersJsonSchema": {"type": "OBJECT"}},
        {"name": "c"},
    ]
    config = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["b"]}}
    request = parse(tools=[{"googleSearch": {}}, {"functionDeclarations": declared, "codeExecution": {}}], toolConfig=config)
    assert request.tools == (
        ToolSpec(name="a", description="A", parameters={"type": "object", "properties": {"x": {"type": "string"}}}),
        ToolSpec(name="b", parameters={"type": "OBJECT"}),
        ToolSpec(name="c"),
    )
    assert (request.tool_choice, request.forced_tool, request.ignored) == (
        "required",
        "b",
        ("tools.googleSearch", "tools.codeExecution"),
    )


@pytest.mark.parametrize(
    ("config", "read"),
    [
        ({"mode": "AUTO"}, ("auto", ())),
        ({"mode": "NONE"}, ("none", ())),
        ({"mode": "VALIDATED"}, ("auto", ())),
        ({}, ("auto", ())),
        ({"mode": "any"}, ("required", ())),
        ({"mode": "ANY", "allowedFunctionNames": ["a", "b"]}, ("required", ("allowedFunctionNames",))),
    ],
)
def test_modes(config, read):
    tools = [{"functionDeclarations": [{"name": "a"}, {"name": "b"}]}]
    request = parse(tools=tools, toolConfig={"functionCallingConfig": config})
    assert ((request.tool_choice, request.ignored), request.forced_tool) == (read, "")


def test_a_choice_without_functions_is_named_and_not_obeyed():
    request = parse(toolConfig={"functionCallingConfig": {"mode": "ANY"}})
    assert (request.tool_choice, request.ignored) == ("auto", ("toolConfig",))


def test_settings_are_recorded_and_the_rest_is_named():
    request = parse(
        generationConfig={
            "temperature": 1, "topP": 0.95, "topK": 64, "maxOutputTokens": "512", "stopSequences": ["END"], "seed": 3,
            "candidateCount": 1, "thinkingConfig": {"includeThoughts": True}, "presencePenalty": 0.1, "responseLogprobs": True,
            "logprobs": 2,
        },
        safetySettings=[{"category": "X"}], cachedContent="cachedContents/1", labels={"a": "b"}, serviceTier="x", nothing=None,
    )  # fmt: skip
    asked = request.requested
    assert (asked.temperature, asked.top_p, asked.max_tokens, asked.stop, asked.seed, asked.n) == (
        1.0,
        0.95,
        512,
        ("END",),
        3,
        1,
    )
    assert request.wants_logprobs
    assert set(request.ignored) == {
        "safetySettings", "cachedContent", "labels", "serviceTier", "generationConfig.topK", "generationConfig.thinkingConfig",
        "generationConfig.presencePenalty", "generationConfig.logprobs",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "schema"),
    [
        ({}, None),
        ({"responseMimeType": "text/plain"}, None),
        ({"responseMimeType": "application/json"}, ANY_JSON),
        ({"responseMimeType": "application/json", "responseSchema": {"type": "ARRAY"}}, {"type": "array"}),
        ({"responseMimeType": "application/json", "responseJsonSchema": {"type": "number"}}, {"type": "number"}),
    ],
)
def test_schemas_of_the_reply(config, schema):
    assert parse(generationConfig=config).schema == schema


# --- spelling ------------------------------------------------------------------------------------------------------------

CAMEL = {
    "systemInstruction": {"parts": [{"text": "be brief"}]},
    "contents": [
        {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": PIXEL}}, {"text": "go"}]},
        {"role": "model", "parts": [
            {"functionCall": {"name": "f", "args": {"mime_type": 1, "functionCall": 2}}, "thoughtSignature": "x"}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"file_uri": "x", "y": 1}}}]},
    ],
    "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"properties": {"file_uri": {}}}}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
    "generationConfig": {"maxOutputTokens": 5, "stopSequences": ["x"], "responseMimeType": "application/json", "topP": 1},
}  # fmt: skip
OWN = ("args", "response", "parametersJsonSchema")


def snake(value):
    if isinstance(value, list):
        return [snake(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        re.sub("[A-Z]", lambda c: "_" + c.group().lower(), name): item if name in OWN else snake(item)
        for name, item in value.items()
    }


def test_both_spellings_read_the_same_and_what_is_the_users_own_is_never_respelled():
    camel, snakes = (DIALECT.parse(json.dumps(body).encode(), Target()) for body in (CAMEL, snake(CAMEL)))
    assert camel == snakes
    assert json.loads(camel.messages[2].tool_calls[0].arguments) == {"mime_type": 1, "functionCall": 2}
    assert json.loads(camel.messages[3].content) == {"file_uri": "x", "y": 1}
    assert camel.tools[0].parameters == {"properties": {"file_uri": {}}}
    assert camel.ignored == ()


def test_one_value_where_a_list_is_meant():
    request = parse(
        contents={"parts": {"text": "hi"}},
        system_instruction={"parts": {"text": "be brief"}},
        tools={"function_declarations": {"name": "f"}, "google_search": {}},
    )
    assert [message.content for message in request.messages] == ["be brief", "hi"]
    assert ([tool.name for tool in request.tools], request.ignored) == (["f"], ("tools.google_search",))
    assert parse(systemInstruction="be brief").messages[0] == Message(role="system", content="be brief")


# --- counting, refusing --------------------------------------------------------------------------------------------------


def test_counting_takes_contents_or_a_whole_request():
    inner = {
        "model": "models/m",
        "contents": HI,
        "systemInstruction": "s",
        "tools": [{"functionDeclarations": [{"name": "f"}]}],
    }
    plain = DIALECT.parse_count(json.dumps({"contents": HI}).encode(), Target(model="m"))
    full = DIALECT.parse_count(json.dumps({"generateContentRequest": inner}).encode(), Target(model="m"))
    assert plain.messages == parse().messages
    assert full == DIALECT.parse(json.dumps(inner).encode(), Target(model="m"))
    assert DIALECT.parse_count(json.dumps(snake({"generateContentRequest": inner})).encode(), Target(model="m")) == full
    assert DIALECT.counted(12) == b'{"totalTokens":12}'


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"contents": []}, "contents is empty"),
        ({"contents": None}, "contents is empty"),
        ({"contents": ["oops"]}, "$.contents[0]"),
        ({"contents": [{"role": "robot", "parts": []}]}, "contents[0].role is 'robot'"),
        ({"contents": [{"parts": [{"text": 3}]}]}, "$.contents[0].parts[0].text"),
        ({"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": "%"}}]}]},
         "contents[0].parts[0].inlineData.data is not base64"),
        ({"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f", "args": [1]}}]}]},
         "contents[0].parts[0].functionCall.args is not an object"),
        ({"generationConfig": {"candidateCount": 2}}, "candidateCount is 2"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "maxOutputTokens is 0"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "SOMETIMES"}}}, "mode is 'SOMETIMES'"),
        ({"toolConfig": {"functionCallingConfig": {"allowedFunctionNames": ["x"]}}}, "allowedFunctionNames names 'x'"),
        ({"tools": [{"functionDeclarations": [{"description": "no name"}]}]}, "name"),
        ({"generation_config": {"temperature": "hot"}}, "$.generationConfig.temperature"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_named(body, says):
    assert says in refusal(**body)


def test_bodies_that_are_no_json_are_refused():
    deep = b'{"contents": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for body in (b"", b"{", b"[]", b'{"contents": "x"}', b'\xff{"contents": []}', deep, b'{"tool_config":' + deep):
        for read in (DIALECT.parse, DIALECT.parse_count):
            with pytest.raises(RequestError, match="cannot be read"):
                read(body, Target())


@pytest.mark.parametrize(
    ("status", "word"),
    [(400, "INVALID_ARGUMENT"), (401, "UNAUTHENTICATED"), (403, "PERMISSION_DENIED"), (404, "NOT_FOUND"),
     (409, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED"), (500, "INTERNAL"), (502, "INTERNAL"), (503, "UNAVAILABLE")],
)  # fmt: skip
def test_errors_have_googles_form(status, word):
    error = json.loads(DIALECT.error(RequestError("no", "do so", status=status)))
    assert error == {"error": {"code": status, "message": "no (do so)", "status": word}}


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        ("the prompt has 5000 tokens; the model's maximum context length is 4096",
         "The input token count (5000) exceeds the maximum number of tokens allowed (4096)."),
        ("vllm answered 400: long", "The input token count exceeds the maximum number of tokens allowed: vllm answered 400"),
    ],
)  # fmt: skip
def test_a_prompt_that_does_not_fit_is_told_in_geminis_words(cause, says):
    error = json.loads(DIALECT.error(RequestError(cause, code="context_length_exceeded")))["error"]
    assert error["message"].startswith(says)
    assert error["status"] == "INVALID_ARGUMENT"


def test_models_have_googles_form():
    (model,) = json.loads(DIALECT.models(("policy",), 4096))["models"]
    assert model == json.loads(DIALECT.model("policy", 4096))
    assert (model["name"], model["inputTokenLimit"]) == ("models/policy", 4096)
    assert model["supportedGenerationMethods"] == ["generateContent", "countTokens"]
