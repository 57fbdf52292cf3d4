"""Tools of Responses requests: names, kinds, choice."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from turns import CALL

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, Target
from whippletree.gateway.dialects.responses import ResponsesDialect
from whippletree.gateway.dialects.responses_tools import Toolbox, flat_name
from whippletree.types import ParsedMessage, ToolCall

DIALECT = ResponsesDialect()
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
BASH = {"type": "function", "name": "bash", "parameters": {"type": "object", "properties": {}}, "strict": True}


def parse(**body):
    return DIALECT.parse(json.dumps({"input": "hi", **body}).encode(), Target())


def refusal(**body):
    with pytest.raises(RequestError) as error:
        parse(**body)
    assert error.value.status == 400
    return str(error.value)


def test_tools_of_every_kind():
    inner = [
        {"type": "function", "name": "status"},
        {"type": "custom", "name": "exec", "description": "run", "format": GRAMMAR},
    ]
    request = parse(
        tools=[
            {**BASH, "description": "run", "defer_loading": True},
            {"type": "custom", "name": "apply_patch", "format": {"type": "text"}},
            {"type": "namespace", "name": "mcp__fs__", "description": "files", "tools": inner},
            {"type": "web_search", "external_web_access": True},
            {"type": "tool_search", "execution": "client", "parameters": "anything"},
            {"type": "mcp", "server_label": "x", "tools": 3},
            {"type": "local_shell"},
        ],
    )
    found = [(tool.name, tool.kind, tool.namespace, tool.own_name) for tool in request.tools]
    assert found == [
        ("bash", "function", "", ""),
        ("apply_patch", "custom", "", ""),
        ("mcp__fs__status", "function", "mcp__fs__", "status"),
        ("mcp__fs__exec", "custom", "mcp__fs__", "exec"),
    ]
    assert request.ignored == ("tools.web_search", "tools.tool_search", "tools.mcp", "tools.local_shell")
    assert request.tools[3].description == "run\n\n`input` is text that follows this lark grammar:\nstart: /.+/"
    assert request.tools[1].parameters["required"] == ["input"]
    assert request.tools[0].parameters == BASH["parameters"]


def test_tools_among_the_input_items_come_after_those_of_the_request():
    item = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "wait"}, BASH]}
    request = parse(input=[item, {"role": "user", "content": "hi"}], tools=[BASH], additional_tools=[{**BASH, "name": "more"}])
    assert [tool.name for tool in request.tools] == ["bash", "more", "wait"]
    assert [message.role for message in request.messages] == ["user"]
    assert request.ignored == ()


NAMES = st.sampled_from(["a", "b", "a__b", "b__a", "c__", "a__b_2", "_"])


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["", "a", "a__", "b", "a__b"]), NAMES), max_size=12))
def test_names_are_unique_and_lead_back_to_their_tool(wanted):
    toolbox = Toolbox()
    for namespace, name in wanted:
        toolbox.add([msgspec.Raw(json.dumps({"type": "function", "name": name}).encode())], "tools", namespace)
    names = [spec.name for spec in toolbox.specs]
    assert len(set(names)) == len(names) == len(set(wanted))
    for spec in toolbox.specs:
        assert toolbox.name(spec.namespace, spec.own_name or spec.name) == spec.name


def test_a_tool_that_is_no_longer_offered_keeps_its_name():
    assert flat_name("multi_agent_v1", "spawn_agent") == "multi_agent_v1__spawn_agent"
    called = {"type": "function_call", "call_id": "c", "name": "spawn_agent", "namespace": "multi_agent_v1", "arguments": "{}"}
    request = parse(input=[{"role": "user", "content": "hi"}, called, {"role": "user", "content": "sum up"}], tools=[])
    assert request.messages[1].tool_calls[0].name == "multi_agent_v1__spawn_agent"


@pytest.mark.parametrize("arguments", ['{"input": "a\\nb"}', '{"command": "ls"}', "", '{"input": "cut', "no JSON"])
@pytest.mark.parametrize("name", ["functions__exec", "apply_patch", "bash"])
def test_a_call_of_any_tool_comes_back_as_it_was_sampled(name, arguments):
    tools = [
        BASH,
        {"type": "custom", "name": "apply_patch", "format": GRAMMAR},
        {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]},
    ]
    request = parse(tools=tools)
    message = ParsedMessage(tool_calls=(ToolCall(id="call_1", name=name, arguments=arguments),), finish_reason="tool_calls")
    head = ReplyHead(call_id="c-12", model="policy", created=1, request=request)
    items = json.loads(DIALECT.reply(head, CALL, message))["output"]
    assert [item["type"] for item in items] == ["function_call" if name == "bash" else "custom_tool_call"]
    assert items[0].get("namespace") == ("functions" if name == "functions__exec" else None)
    (call,) = parse(tools=tools, input=[{"role": "user", "content": "hi"}, *items]).messages[1].tool_calls
    assert (call.id, call.name) == ("call_1", name)
    if arguments and not arguments.endswith("cut"):
        assert call.arguments in (arguments, arguments.replace(": ", ":"))


@pytest.mark.parametrize(
    ("choice", "mode", "forced"),
    [
        (None, "auto", ""),
        ("none", "none", ""),
        ("required", "required", ""),
        ({"type": "function", "name": "bash"}, "required", "bash"),
        ({"type": "custom", "name": "exec", "namespace": "functions"}, "required", "functions__exec"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "bash"}]}, "required", "bash"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "bash"}]}, "auto", ""),
        ({"type": "web_search_preview"}, "auto", ""),
    ],
)
def test_the_choice_of_tools(choice, mode, forced):
    namespace = {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}
    request = parse(tools=[BASH, namespace], tool_choice=choice)
    assert (request.tool_choice, request.forced_tool) == (mode, forced)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0] cannot be read"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name is empty"),
        ({"tools": [{"type": "function", "name": "x", "parameters": []}]}, "$.parameters"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]}, "tools[0].tools[0]"),
        ({"tools": ["bash"]}, "tools[0] cannot be read"),
        ({"tools": {}}, "$.tools"),
        ({"tool_choice": "sometimes"}, "tool_choice is 'sometimes'"),
        ({"tools": [BASH], "tool_choice": {"type": "function", "name": "zsh"}}, "names 'zsh'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(body, says):
    assert says in refusal(**body)
