"""Chat templates: Jinja in a sandbox, with the conventions of transformers.

Invariants (tests/rendering/test_rendering_template.py):
- the text equals what transformers' `apply_chat_template` gives for the same messages and the same date;
- the same messages give the same text on any day;
- a template that refuses or cannot render the messages is a RequestError, one that does not compile a ConfigurationError.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from whippletree.errors import ConfigurationError, RequestError
from whippletree.rendering.config import RenderingConfig
from whippletree.types import Message, ToolCall, ToolSpec

TINY = Path(__file__).parent / "templates" / "tiny.jinja"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """One compiled template (or two: with tools, without) and the variables that it always sees."""

    def __init__(self, source: str, tool_source: str, variables: dict[str, Any], config: RenderingConfig) -> None:
        self.source = source
        environment = _environment(config.date)
        try:
            self._plain = environment.from_string(source)
            self._tools = environment.from_string(tool_source) if tool_source else self._plain
        except jinja2.TemplateError as error:
            raise ConfigurationError(
                f"the chat template does not compile: {error}", "mend it or set rendering.template"
            ) from error
        self._variables = variables
        self._text_arguments = config.arguments == "text"

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        """Text of the messages. Raises RequestError when the template refuses them."""
        template = self._tools if tools else self._plain
        try:
            text = template.render(
                messages=[_message(message, self._text_arguments) for message in messages],
                tools=[_tool(tool) for tool in tools] or None,
                documents=None,
                add_generation_prompt=generation_prompt,
                **self._variables,
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise RequestError(
                f"the chat template refuses these messages: {error}", "change the messages or the template"
            ) from error
        return text.encode("utf-8", "replace").decode()  # a lone surrogate from an escaped argument has no UTF-8


def load_template(model_dir: Path, config: RenderingConfig) -> ChatTemplate:
    """The template that `config` names, else the model's own. Raises ConfigurationError when there is none."""
    settings = _settings(model_dir)
    variables: dict[str, Any] = {name: _token(settings[name]) for name in SPECIAL_TOKENS if settings.get(name)}
    variables |= config.options
    if config.template:
        path = TINY if config.template == "tiny" else Path(config.template)
        return ChatTemplate(_read(path), "", variables, config)
    if (model_dir / "chat_template.jinja").is_file():
        tools = model_dir / "additional_chat_templates" / "tool_use.jinja"
        return ChatTemplate(
            _read(model_dir / "chat_template.jinja"), _read(tools) if tools.is_file() else "", variables, config
        )
    own = settings.get("chat_template")
    if isinstance(own, list):
        named = {entry["name"]: entry["template"] for entry in own}
        return ChatTemplate(named.get("default", ""), named.get("tool_use", ""), variables, config)
    if not own:
        raise ConfigurationError(f"{model_dir} has no chat template", 'set rendering.template to a Jinja file or to "tiny"')
    return ChatTemplate(own, "", variables, config)


def end_tokens(model_dir: Path) -> tuple[list[int], str]:
    """Ids that generation_config.json and config.json call the end, and the tokenizer's own end token ("" when unset)."""
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        path = model_dir / name
        ends = _json(path).get("eos_token_id") if path.is_file() else None
        ids += ends if isinstance(ends, list) else [] if ends is None else [ends]
    return ids, _token(_settings(model_dir).get("eos_token") or "")


def _settings(model_dir: Path) -> dict[str, Any]:
    path = model_dir / "tokenizer_config.json"
    return _json(path) if path.is_file() else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{path}: {error}", "mend or restore the file") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}", "mend rendering.template") from error


def _token(value: str | dict[str, Any]) -> str:
    return value if isinstance(value, str) else str(value["content"])


def _message(message: Message, text_arguments: bool) -> dict[str, Any]:
    """A message as transformers hands it to templates: keys that do not apply are left out."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        out |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
    if message.tool_calls:
        out["tool_calls"] = [_tool_call(call, text_arguments) for call in message.tool_calls]
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    if message.name:
        out["name"] = message.name
    return out


def _tool_call(call: ToolCall, text_arguments: bool) -> dict[str, Any]:
    arguments: Any = call.arguments
    if not text_arguments:
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError):
            arguments = call.arguments
    function = {"name": call.name, "arguments": arguments, "arguments_text": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _environment(date: str) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _clock(date)
    return environment


class _Generation(jinja2.ext.Extension):
    """Accepts `{% generation %}...{% endgeneration %}`, which only marks text for other tools, and renders what is inside."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _clock(date: str) -> Callable[[str], str]:
    try:
        today = datetime.fromisoformat(date)
    except ValueError as error:
        raise ConfigurationError(f"rendering.date {date!r} is not an ISO date", "write for example 2026-01-01") from error
    return today.strftime
