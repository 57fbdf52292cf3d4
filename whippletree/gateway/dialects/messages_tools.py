"""Tools of the Anthropic form → tools of the internal form.

| tool | what becomes of it |
|---|---|
| custom (a schema of its own, of whatever type) | offered |
| bash_*, text_editor_* | offered with the schema below: the harness runs them itself, and their form is published |
| any other typed tool, MCP toolsets | not offered: a server would have to run them, or the model would have to see a screen |
| defer_loading | not offered at the start, as with Anthropic; a tool_reference puts its definition into the conversation |

Invariants (tests/gateway/test_gateway_messages_tools.py):
- the names of the tools that are offered are unique; every tool that is not offered is named in `ignored`;
- which tools are offered does not change when a harness finds another deferred one.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import messages_wire as wire
from whippletree.types import Struct, ToolSpec

SERVER_SEARCH = "tool_search_tool"  # the start of the types of a search that a server runs

BASH = ToolSpec(
    name="bash",
    description="Run a command in a bash shell that stays open between calls, and read what it prints.",
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "The command to run."},
            "restart": {"type": "boolean", "description": "Start the shell anew instead of running a command."},
        },
    },
)

_EDITOR_COMMANDS = ["view", "create", "str_replace", "insert"]
_EDITOR_PROPERTIES: dict[str, Any] = {
    "command": {"type": "string", "enum": _EDITOR_COMMANDS, "description": "What to do."},
    "path": {"type": "string", "description": "Absolute path of the file or directory."},
    "view_range": {
        "type": "array",
        "items": {"type": "integer"},
        "description": "For view: first and last line, counted from 1; -1 is the end of the file.",
    },
    "file_text": {"type": "string", "description": "For create: the text of the new file."},
    "old_str": {"type": "string", "description": "For str_replace: the text to replace, which must occur exactly once."},
    "new_str": {"type": "string", "description": "For str_replace: the text to put in its place."},
    "insert_line": {"type": "integer", "description": "For insert: the line after which to put the text; 0 is the start."},
}
EDITOR = ToolSpec(
    name="str_replace_based_edit_tool",
    description="View, create and edit text files.",
    parameters={
        "type": "object",
        "properties": {
            **_EDITOR_PROPERTIES,
            "insert_text": {"type": "string", "description": "For insert: the text to put in."},
        },
        "required": ["command", "path"],
    },
)
EARLIER_EDITOR = ToolSpec(
    name="str_replace_editor",
    description=EDITOR.description,
    parameters={
        "type": "object",
        "properties": {
            **_EDITOR_PROPERTIES,
            "command": {"type": "string", "enum": [*_EDITOR_COMMANDS, "undo_edit"], "description": "What to do."},
            "new_str": {"type": "string", "description": "For str_replace and insert: the text to put in."},
        },
        "required": ["command", "path"],
    },
)
EARLIER_EDITORS = ("text_editor_20241022", "text_editor_20250124")


class Tools(Struct):
    """What a request offers, and what it holds back until it is found.

    Example: Tools(offered=(ToolSpec(name="bash"),), deferred={"weather": ToolSpec(name="weather")})
    """

    offered: tuple[ToolSpec, ...] = ()
    deferred: dict[str, ToolSpec] = {}


def read_tools(tools: list[wire.WireTool] | None, ignored: dict[str, None]) -> Tools:
    """The tools of a request; names of what is not used are added to `ignored`. Raises RequestError (400)."""
    offered: dict[str, ToolSpec] = {}
    deferred: dict[str, ToolSpec] = {}
    searches = any((tool.type or "").startswith(SERVER_SEARCH) for tool in tools or ())  # a search that nobody here runs
    for place, tool in enumerate(tools or ()):
        if bytes(tool.cache_control):
            ignored["cache_control"] = None
        spec = _spec(tool, f"tools.{place}")
        if spec is None:
            ignored[f"tools.{tool.name or tool.type}"] = None
            continue
        if spec.name in offered or spec.name in deferred:
            raise RequestError(f"tools.{place}.name: {spec.name!r} is there twice", "tool names must be unique")
        if tool.defer_loading and not searches:
            ignored[f"tools.{spec.name}"] = None
            deferred[spec.name] = spec
        else:
            offered[spec.name] = spec
    return Tools(offered=tuple(offered.values()), deferred=deferred)


def _spec(tool: wire.WireTool, place: str) -> ToolSpec | None:
    kind = tool.type or "custom"
    known = None
    if kind.startswith("bash_"):
        known = BASH
    elif kind.startswith("text_editor_"):
        known = EARLIER_EDITOR if kind in EARLIER_EDITORS else EDITOR
    if known is not None and tool.input_schema is None:
        return msgspec.structs.replace(known, name=tool.name or known.name)
    if kind != "custom" and tool.input_schema is None:
        return None
    if not tool.name:
        raise RequestError(f"{place}.name: a custom tool needs a name", "give it one")
    return ToolSpec(name=tool.name, description=tool.description or "", parameters=tool.input_schema or {})


class Choice(Struct):
    """Which tools the model may or must call. Example: Choice(mode="required", tool="bash")"""

    mode: Literal["auto", "none", "required"] = "auto"
    tool: str = ""


def read_choice(choice: wire.ToolChoice | None, tools: Tools, ignored: dict[str, None]) -> Choice:
    """The tool choice of a request; one that no offered tool can follow is not used. Raises RequestError (400)."""
    if choice is None:
        return Choice()
    if choice.disable_parallel_tool_use:
        ignored["disable_parallel_tool_use"] = None
    match choice.type:
        case "auto" | "none":
            return Choice(mode="none" if choice.type == "none" else "auto")
        case "any":
            if tools.offered:
                return Choice(mode="required")
        case "tool":
            if any(tool.name == choice.name for tool in tools.offered):
                return Choice(mode="required", tool=choice.name or "")
            if choice.name not in tools.deferred and f"tools.{choice.name}" not in ignored:
                raise RequestError(f"tool_choice.name: {choice.name!r} is none of the tools", "name a tool of this request")
        case kind:
            raise RequestError(f"tool_choice.type: {kind!r} is not known", "use auto, any, tool or none")
    ignored["tool_choice"] = None
    return Choice()
