"""Tools of the Messages dialect: what is offered to the model, what is not, what must be called."""

import json

import pytest

from whippletree.gateway.dialects import Target
from whippletree.gateway.dialects.messages import MessagesDialect
from whippletree.types import ToolSpec

DIALECT = MessagesDialect()
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "tell", "input_schema": SCHEMA}


def parse(tools, content="hi", **body):
    sent = {"messages": [{"role": "user", "content": content}], "tools": tools, **body}
    return DIALECT.parse(json.dumps(sent).encode(), Target())


def test_a_tool_with_a_schema_is_offered_as_it_is():
    for kind in ({}, {"type": "custom"}, {"type": None}, {"type": "novelty_20270101"}):
        request = parse([{**WEATHER, **kind, "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True}])
        assert request.tools == (ToolSpec(name="weather", description="tell", parameters=SCHEMA),)
        assert request.ignored == ("cache_control",)


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "web_fetch_20250910", "name": "web_fetch"},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 1, "display_height_px": 1},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "mcp_toolset", "mcp_server_name": "m"},
    ],
)
def test_what_a_server_would_run_is_not_offered(tool):
    request = parse([tool, WEATHER])
    assert [offered.name for offered in request.tools] == ["weather"]
    assert request.ignored == (f"tools.{tool.get('name', tool['type'])}",)


@pytest.mark.parametrize(
    ("tool", "name", "required", "commands"),
    [
        ({"type": "bash_20250124", "name": "bash"}, "bash", set(), None),
        (
            {"type": "text_editor_20250124", "name": "str_replace_editor"},
            "str_replace_editor",
            {"command", "path"},
            "undo_edit",
        ),
        ({"type": "text_editor_20250728"}, "str_replace_based_edit_tool", {"command", "path"}, "str_replace"),
    ],
)
def test_what_the_harness_itself_runs_is_offered_with_its_published_form(tool, name, required, commands):
    (offered,) = parse([tool]).tools
    assert (offered.name, set(offered.parameters.get("required", []))) == (name, required)
    assert "command" in offered.parameters["properties"]
    assert commands is None or commands in offered.parameters["properties"]["command"]["enum"]


def test_a_deferred_tool_is_offered_where_it_is_found():
    deferred = {**WEATHER, "defer_loading": True}
    search = {"name": "search", "input_schema": SCHEMA}
    before = parse([search, deferred])
    found = [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "weather"}]}]
    after = parse([search, deferred, {**WEATHER, "name": "tides", "defer_loading": True}], content=found)
    assert [tool.name for tool in before.tools] == ["search"]
    assert after.tools == before.tools
    assert before.ignored == ("tools.weather",)
    (result,) = after.messages
    definition = json.loads(result.content.removeprefix("<function>").removesuffix("</function>"))
    assert definition == {"name": "weather", "description": "tell", "parameters": SCHEMA}
    unknown = parse([search], content=[{"type": "tool_result", "tool_use_id": "t", "content": found[0]["content"]}])
    assert unknown.messages[0].content == "[tool weather]"


def test_deferred_tools_that_only_a_server_could_find_are_offered():
    request = parse([{"type": "tool_search_tool_regex_20251119", "name": "tool_search"}, {**WEATHER, "defer_loading": True}])
    assert [tool.name for tool in request.tools] == ["weather"]
    assert request.ignored == ("tools.tool_search",)


@pytest.mark.parametrize(
    ("choice", "mode", "forced"),
    [
        (None, "auto", ""),
        ({"type": "auto"}, "auto", ""),
        ({"type": "none"}, "none", ""),
        ({"type": "any"}, "required", ""),
        ({"type": "tool", "name": "weather"}, "required", "weather"),
    ],
)
def test_tool_choice(choice, mode, forced):
    request = parse([WEATHER], tool_choice=choice)
    assert (request.tool_choice, request.forced_tool, request.ignored) == (mode, forced, ())


def test_a_choice_that_no_offered_tool_can_follow_is_not_used():
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    forced = parse([hosted], tool_choice={"type": "tool", "name": "web_search"})
    assert (forced.tool_choice, forced.forced_tool, forced.ignored) == ("auto", "", ("tools.web_search", "tool_choice"))
    anything = parse([], tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert (anything.tool_choice, anything.ignored) == ("auto", ("disable_parallel_tool_use", "tool_choice"))
