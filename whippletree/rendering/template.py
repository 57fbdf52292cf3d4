"""Chat templates: Jinja in a sandbox, with the conventions of transformers.

Invariants (tests/rendering/test_rendering_template.py):
- the text equals what transformers' `apply_chat_template` gives for the same messages and the same date;
- the same messages give the same text on any day;
- a template that refuses or cannot render the messages is a RequestError, one that does not compile a ConfigurationError;
- what is remembered (tools and arguments as a template sees them, their JSON) changes no text.
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
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from whippletree.errors import ConfigurationError, RequestError
from whippletree.rendering.caching import ByteCache
from whippletree.rendering.config import RenderingConfig
from whippletree.types import Message, ToolCall, ToolSpec

TINY = Path(__file__).parent / "templates" / "tiny.jinja"
TOOLS_BYTES = 16 << 20  # for tool lists that were seen lately
ARGUMENTS_BYTES = 32 << 20  # for arguments of calls that were seen lately
OBJECT_BYTES = 500  # of a small object and its place
OBJECT_FACTOR = 6  # Python objects take about this many times the bytes of their JSON
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
        self._seen: ByteCache[bytes, list[_Remembered]] = ByteCache(TOOLS_BYTES)
        self._arguments: ByteCache[str, _Remembered] = ByteCache(ARGUMENTS_BYTES)

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        """Text of the messages. Raises RequestError when the template refuses them."""
        template = self._tools if tools else self._plain
        try:
            text = template.render(
                messages=[message_object(message, self._parsed) for message in messages],
                tools=self._tool_list(tools) or None,
                documents=None,
                add_generation_prompt=generation_prompt,
                **self._variables,
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise RequestError(
                f"the chat template refuses these messages: {error}", "change the messages or the template"
            ) from error
        return text.encode("utf-8", "replace").decode()  # a lone surrogate from an escaped argument has no UTF-8

    def _parsed(self, text: str) -> Any:
        """Arguments of a call as templates see them: parsed, or the text itself where that is wanted or it is no JSON."""
        if self._text_arguments:
            return text
        seen = self._arguments.get(text)
        if seen is not None:
            return seen
        arguments = parsed_arguments(text)
        if isinstance(arguments, dict):
            arguments = _Remembered(arguments)
            self._arguments.put(text, arguments, OBJECT_FACTOR * len(text) + OBJECT_BYTES)
        return arguments

    def _tool_list(self, tools: Sequence[ToolSpec]) -> list[_Remembered]:
        if not tools:
            return []
        key = msgspec.msgpack.encode(tools)
        seen = self._seen.get(key)
        if seen is None:
            seen = [_Remembered(tool_object(tool)) for tool in tools]
            self._seen.put(key, seen, OBJECT_FACTOR * len(key))
        return seen


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


def parsed_arguments(text: str) -> Any:
    """What the arguments of a call hold; the text itself where it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def message_object(message: Message, parsed: Callable[[str], Any]) -> dict[str, Any]:
    """A message as transformers hands it to templates: keys that do not apply are left out. `parsed` reads arguments."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        out |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
    if message.tool_calls:
        out["tool_calls"] = [_tool_call(call, parsed) for call in message.tool_calls]
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    if message.name:
        out["name"] = message.name
    return out


def _tool_call(call: ToolCall, parsed: Callable[[str], Any]) -> dict[str, Any]:
    function = {"name": call.name, "arguments": parsed(call.arguments), "arguments_text": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def tool_object(tool: ToolSpec) -> dict[str, Any]:
    """A tool as transformers hands it to templates."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


class _Remembered(dict[str, Any]):
    """A tool, or the arguments of a call, as templates see them; their JSON is made once. No template can change it."""

    __slots__ = ("_texts",)

    def __init__(self, value: dict[str, Any]) -> None:
        super().__init__(value)
        self._texts: dict[object, str] = {}

    def json(self, style: object, make: Callable[[], str]) -> str:
        """Its JSON in a style that was asked for before, or as `make` gives it."""
        text = self._texts.get(style)
        if text is None:
            text = self._texts[style] = make()
        return text


_DICT_NAMES = frozenset(dir(dict))
_LOOP_NAMES = frozenset(name for name in dir(LoopContext) if not name.startswith("_"))
_STR_METHODS = frozenset(name for name in dir(str) if not name.startswith("_")) - {"format", "format_map"}


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a short way for what templates do most: keys of dictionaries, methods of strings, places in a loop.

    What the short way gives is what the sandbox gives; anything else, and `format`, goes through the sandbox.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute` in a template."""
        kind = type(obj)
        if kind is dict or kind is _Remembered:
            if attribute not in _DICT_NAMES:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        elif (kind is str and attribute in _STR_METHODS) or (kind is LoopContext and attribute in _LOOP_NAMES):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _environment(date: str) -> _Environment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation])
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
    def make() -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    if isinstance(value, _Remembered):
        style = (ensure_ascii, indent, tuple(separators) if separators else None, sort_keys)
        return value.json(style, make)
    return make()


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _clock(date: str) -> Callable[[str], str]:
    try:
        today = datetime.fromisoformat(date)
    except ValueError as error:
        raise ConfigurationError(f"rendering.date {date!r} is not an ISO date", "write for example 2026-01-01") from error
    return today.strftime
