"""The renderer of every model that has a `tokenizer.json` and a Jinja chat template.

    messages ─► template ─► text ─► codec ─► ids         render
    recorded ids + encode(what the template adds)        bridge
    sampled ids ─► codec ─► parser ─► message            parser

Invariants (tests/rendering/test_rendering_renderer.py):
- bridge, policy "exact": the ids start with the recorded ids and their text is the text that render gives;
- bridge, policy "keep": the ids start with the recorded ids, and it gives ids wherever "exact" does;
- render and bridge depend on nothing but their arguments, the model's files and the configuration.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

import msgspec

from whippletree.errors import ConfigurationError, RequestError
from whippletree.protocols import Renderer
from whippletree.rendering.bridging import exact_remainder, kept_remainder
from whippletree.rendering.codec import Codec, load_codec
from whippletree.rendering.config import RenderingConfig
from whippletree.rendering.layout import Layout, measure
from whippletree.rendering.parsing import TextParser, TurnParser
from whippletree.rendering.template import ChatTemplate, end_tokens, load_template
from whippletree.types import Message, ParsedMessage, Struct, ToolSpec


class _Conversation(Struct):
    """Key of the cache of rendered texts.

    Example: _Conversation(messages=(Message(role="user", content="hi"),))
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()


class ChatRenderer:
    """messages ⇄ tokens for one model directory. Safe to use from several threads."""

    def __init__(
        self, codec: Codec, template: ChatTemplate, layout: Layout, stop_token_ids: list[int], config: RenderingConfig
    ) -> None:
        self.codec = codec
        self.template = template
        self.layout = layout
        self.stop_token_ids = stop_token_ids
        self.policy = config.policy
        self.reads_calls = config.tool_format == "hermes" or (config.tool_format == "auto" and self.layout.hermes)
        self.reads_thinking = config.reasoning_format == "think" or (
            config.reasoning_format == "auto" and (self.layout.thinks or self.layout.opens_thinking)
        )
        self._texts = lru_cache(maxsize=32)(self._text)

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Prompt ids with the generation prompt at the end. Raises RequestError when the template refuses the messages."""
        return self.codec.encode(self.text(messages, tools))

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """The text that `render` encodes."""
        if not self.layout.shows_calls and any(message.tool_calls for message in messages):
            raise RequestError(
                "this model's chat template leaves tool calls out", "use a harness without tool calls or another template"
            )
        return self._texts(msgspec.msgpack.encode(_Conversation(messages=tuple(messages), tools=tuple(tools))))

    def _text(self, key: bytes) -> str:
        conversation = msgspec.msgpack.decode(key, type=_Conversation)
        return self.template.render(conversation.messages, conversation.tools, generation_prompt=True)

    def bridge(self, recorded: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int] | None:
        """Prompt ids that start with the recorded ids; None where the policy forbids it. Only the new part is encoded."""
        rest = exact_remainder(self.codec, self.text(messages, tools), self.codec.decode(recorded))
        if rest is None and self.policy == "keep":
            rest = self._kept(recorded, messages, tools)
        return None if rest is None else [*recorded, *self.codec.encode(rest)]

    def _kept(self, recorded: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str | None:
        """Text to put after the recorded ids under "keep": what the turn's end lacks, then what comes after the turn."""
        ended = bool(recorded) and recorded[-1] in self.stop_token_ids
        end = self.codec.decode(recorded[-1:]) if ended else ""
        body = self.codec.decode(recorded[:-1] if ended else recorded)
        after = kept_remainder(
            self.template, self.layout, parse=self._parse(tools), recorded=body, messages=messages, tools=tools
        )
        return None if after is None else self.layout.turn_end.removeprefix(end) + after

    def _parse(self, tools: Sequence[ToolSpec]) -> Callable[[str], ParsedMessage]:
        def parse(text: str) -> ParsedMessage:
            parser = self._text_parser(tools)
            parser.feed(text)
            return parser.finish("stop")[1]

        return parse

    def _text_parser(self, tools: Sequence[ToolSpec]) -> TextParser:
        return TextParser(self.layout, thinking=self.reads_thinking, calls=self.reads_calls and bool(tools))

    def parser(self, tools: Sequence[ToolSpec]) -> TurnParser:
        """A fresh parser for one sampled turn. Where no tool was offered, call marks are plain content."""
        return TurnParser(self.codec, self.stop_token_ids, self._text_parser(tools))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included."""
        return self.codec.decode(token_ids)


def load_renderer(model_dir: Path, config: RenderingConfig | None = None) -> Renderer:
    """The renderer of a model directory in Hugging Face layout. Raises ConfigurationError that names file or key."""
    config = config or RenderingConfig()
    if config.renderer:
        return _custom(config.renderer, model_dir, config)
    codec = load_codec(model_dir / "tokenizer.json")
    template = load_template(model_dir, config)
    layout = measure(template)
    return ChatRenderer(codec, template, layout, _stop_token_ids(codec, layout, model_dir, config), config)


def _stop_token_ids(codec: Codec, layout: Layout, model_dir: Path, config: RenderingConfig) -> list[int]:
    """Ids that end a turn: those of the model's files, the first token of the template's turn end, and the configured ones."""
    ids, own = end_tokens(model_dir)
    named = [codec.token_id(own) if own else None]
    end = codec.encode(layout.turn_end)[:1]
    named += [index for index in end if codec.is_added(index)]
    for token in config.stop_tokens:
        index = codec.token_id(token)
        if index is None:
            raise ConfigurationError(f"rendering.stop_tokens: the tokenizer has no token {token!r}", "write its exact name")
        named.append(index)
    found = sorted({*ids, *(index for index in named if index is not None)})
    if not found:
        raise ConfigurationError(f"{model_dir} names no token that ends a turn", "set rendering.stop_tokens")
    return found


def _custom(name: str, model_dir: Path, config: RenderingConfig) -> Renderer:
    module, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"rendering.renderer {name!r} cannot be loaded: {error}", 'write "module:function"') from error
    return cast(Renderer, factory(model_dir, config))
