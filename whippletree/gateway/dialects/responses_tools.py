"""Tools of a request, and which of them a name in the request means. Pure.

A tool inside a namespace is offered to the model as `<namespace>__<name>`; a custom tool as a function with one string. Hosted
tools (web search and its like) run on the service that they belong to: they are not offered.
Invariants (tests/gateway/test_gateway_responses_tools.py):
- names are unique, also where two namespaces have a tool of the same name;
- a call that is written back under its namespace and own name is read as the same tool again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeVar

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import responses_wire as wire
from whippletree.gateway.dialects.responses_custom import PARAMETERS
from whippletree.types import ToolSpec

T = TypeVar("T")

SEPARATOR = "__"
_NAMED = ("function", "custom", "namespace")
_MODES: dict[str, Literal["auto", "none", "required"]] = {"auto": "auto", "none": "none", "required": "required"}


def decode(raw: bytes | msgspec.Raw, kind: type[T], place: str) -> T:
    """JSON as `kind`. Raises RequestError (400) that names the place."""
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{place} cannot be read: {error}", "mend the field it names") from error


def flat_name(namespace: str, name: str) -> str:
    """What the model sees of a tool inside a namespace; "mcp__fs__" and "mcp__fs" are one namespace to it."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith(SEPARATOR) else namespace + SEPARATOR + name


class Toolbox:
    """The tools of one request, as they are read. `ignored` has the types of those that are not offered, each once."""

    def __init__(self) -> None:
        self.ignored: dict[str, None] = {}
        self._tools: dict[tuple[str, str], ToolSpec] = {}
        self._names: set[str] = set()

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools that are offered, in order."""
        return tuple(self._tools.values())

    def add(self, raws: Iterable[msgspec.Raw], place: str, namespace: str = "") -> None:
        """A list of tools. One that is there already keeps its first form. Raises RequestError (400)."""
        for number, raw in enumerate(raws):
            here = f"{place}[{number}]"
            kind = decode(raw, wire.Kind, here).type
            if kind not in _NAMED or (kind == "namespace" and namespace):
                self.ignored[f"tools.{kind}"[:64]] = None
                continue
            tool = decode(raw, wire.Tool, here)
            if not tool.name:
                raise RequestError(f"{here}.name is empty", "name the tool")
            if kind == "namespace":
                self.add(tool.tools or (), f"{here}.tools", tool.name)
            else:
                self._add(tool, namespace)

    def _add(self, tool: wire.Tool, namespace: str) -> None:
        key = (namespace, tool.name)
        if key in self._tools:
            return
        base = name = flat_name(namespace, tool.name)
        number = 2
        while name in self._names:
            name, number = f"{base}_{number}", number + 1
        self._names.add(name)
        custom = tool.type == "custom"
        self._tools[key] = ToolSpec(
            name=name,
            description=_custom_description(tool) if custom else tool.description or "",
            parameters=PARAMETERS if custom else tool.parameters or {},
            kind="custom" if custom else "function",
            namespace=namespace,
            own_name=tool.name if name != tool.name else "",
        )

    def name(self, namespace: str, name: str) -> str:
        """What the model sees of the tool that the harness calls this; the tool need not be offered any more."""
        spec = self._tools.get((namespace, name))
        return spec.name if spec else flat_name(namespace, name)

    def choice(self, choice: str | wire.ToolChoice | None) -> tuple[Literal["auto", "none", "required"], str]:
        """Mode, and the tool that must be called ("" for none). Raises RequestError (400)."""
        if choice is None or isinstance(choice, str):
            if choice is not None and choice not in _MODES:
                raise RequestError(f"tool_choice is {choice!r}", f"use one of {', '.join(_MODES)}, or name a tool")
            return _MODES[choice or "auto"], ""
        if choice.type == "allowed_tools":
            return self._allowed(choice)
        if choice.type in ("function", "custom"):
            return "required", self._forced(choice)
        self.ignored[f"tool_choice.{choice.type}"[:64]] = None
        return "auto", ""

    def _allowed(self, choice: wire.ToolChoice) -> tuple[Literal["auto", "none", "required"], str]:
        """Every tool stays in the prompt, as the service itself keeps them; one allowed and required tool is forced."""
        mode = _MODES.get(choice.mode or "auto", "auto")
        offered = [tool for tool in choice.tools or () if tool.type in ("function", "custom")]
        if mode == "required" and len(offered) == 1:
            return mode, self._forced(offered[0])
        self.ignored["tool_choice.allowed_tools"] = None
        return mode, ""

    def _forced(self, tool: wire.ChosenTool) -> str:
        name = self.name(tool.namespace or "", tool.name or "")
        if name not in self._names:
            raise RequestError(f"tool_choice names {name!r}, which is no tool of the request", "name one of its tools")
        return name


def _custom_description(tool: wire.Tool) -> str:
    """What the model is told of a custom tool: its description, and its grammar where it has one."""
    parts = [tool.description] if tool.description else []
    if tool.format is not None and tool.format.definition:
        syntax = tool.format.syntax or tool.format.type
        parts.append(f"`input` is text that follows this {syntax} grammar:\n{tool.format.definition}")
    return "\n\n".join(parts)
