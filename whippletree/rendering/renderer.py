"""The renderer of every model that has a `tokenizer.json` and a Jinja chat template.

    messages ─► template ─► text ─► codec ─► ids         render
    recorded ids + encode(what the template adds)        bridge (recorded ids are compared as bytes, never decoded)
    sampled ids ─► codec ─► parser ─► message            parser

Invariants (tests/rendering/test_rendering_renderer.py, test_rendering_completion.py):
- bridge, policy "exact": the text of the recorded ids and of those it gives is the text that render gives;
- bridge, policy "keep": it gives ids wherever "exact" does; policy "engine": it gives none;
- a completion, behind its prompt, is the text that the template gives the conversation with the reply, and parses to the reply;
- the parser reads the forced beginning of a call, then what was sampled, as one turn;
- render and bridge depend on nothing but their arguments, the model's files and the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec

from whippletree.errors import ConfigurationError, RequestError
from whippletree.loading import load_named
from whippletree.protocols import Recorded, Renderer
from whippletree.rendering.bridging import exact_remainder, kept_remainder
from whippletree.rendering.caching import ByteCache
from whippletree.rendering.codec import Codec, load_codec
from whippletree.rendering.config import RenderingConfig
from whippletree.rendering.layout import Layout, measure, opened_call
from whippletree.rendering.parsing import TextParser, TurnParser
from whippletree.rendering.template import ChatTemplate, end_tokens, load_template
from whippletree.types import Message, ToolSpec

FAMILIES = "renderers"
TEXT_SHARE = 8  # rendered texts may take this part of the memory for encoded segments


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
        self._texts: ByteCache[bytes, str] = ByteCache(config.cache_bytes // TEXT_SHARE)

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Prompt ids with the generation prompt at the end. Raises RequestError when the template refuses the messages."""
        return self.codec.encode(self.text(messages, tools))

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """The text that `render` encodes."""
        key = _key(messages, tools)
        text = self._texts.get(key)
        if text is None:
            text = self._checked(messages, tools)
            self._remember(key, text)
        return text

    def _remember(self, key: bytes, text: str) -> None:
        self._texts.put(key, text, len(key) + 4 * len(text))

    def _checked(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """The text, made anew: what goes on from a recorded call is asked for once."""
        self._refuse_calls(messages)
        return self.template.render(self._fitting(messages), tools, generation_prompt=True)

    def _refuse_calls(self, messages: Sequence[Message]) -> None:
        """Raises RequestError for tool calls where the template would leave them out."""
        if not self.layout.shows_calls and any(message.tool_calls for message in messages):
            raise RequestError(
                "this model's chat template leaves tool calls out", "use a harness without tool calls or another template"
            )

    def bridge(self, recorded: Recorded, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int] | None:
        """The ids that follow the recorded ones; None where the policy forbids it. Only the new part is encoded."""
        if self.policy == "engine":
            return None
        text = self._checked(messages, tools)
        rest = exact_remainder(self.codec, text, recorded.text)
        if rest is None and self.policy == "keep":
            rest = self._kept(recorded, messages, tools)
        if rest is None:
            self._remember(_key(messages, tools), text)  # `render` is asked for the same next
            return None
        return self.codec.encode(rest)

    def completion(self, messages: Sequence[Message], reply: Message, tools: Sequence[ToolSpec]) -> list[int] | None:
        """Ids of a reply as this template writes it behind the prompt of `render`, up to the token that ends the turn; None
        where the template writes the prompt otherwise once the reply is there, or no such token after it. Raises RequestError.
        """
        self._refuse_calls([reply])
        prompt = self.text(messages, tools)
        whole = self.template.render(self._fitting([*messages, reply]), tools, generation_prompt=False)
        if not whole.startswith(prompt):
            return None
        ids = self.codec.encode(whole[len(prompt) :])
        ends = [place for place, index in enumerate(ids) if index in self.stop_token_ids]
        return ids[: ends[-1] + 1] if ends else None

    def forced(self, tools: Sequence[ToolSpec], name: str) -> list[int]:
        """Ids that begin a call of the tool `name`, or of any ("") tool; [] where calls are not read or no tool is offered."""
        if not self.reads_calls or not self.layout.call_lead or not tools:
            return []
        return self.codec.encode(opened_call(self.layout.call_lead, name))

    def to_bytes(self, token_ids: Sequence[int]) -> bytes:
        """The exact bytes behind the ids."""
        return self.codec.to_bytes(token_ids)

    def parser(self, tools: Sequence[ToolSpec], stops: Sequence[str] = ()) -> TurnParser:
        """A fresh parser for one sampled turn. Where no tool was offered, call marks are plain content."""
        calls = self.reads_calls and bool(tools)
        text_parser = TextParser(self.layout, thinking=self.reads_thinking, calls=calls, stops=stops)
        return TurnParser(self.codec, self.stop_token_ids, text_parser)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included."""
        return self.codec.decode(token_ids)

    def _kept(self, recorded: Recorded, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str | None:
        """Text to put after the recorded ids under "keep": what the turn's end lacks, then what comes after the turn."""
        last = recorded.sampled[-1:].tolist()
        fitting = self._fitting(messages)
        return kept_remainder(
            self.template,
            self.layout,
            messages=fitting,
            recorded=recorded.messages - (len(messages) - len(fitting)),
            ended=self.codec.decode(last) if last and last[0] in self.stop_token_ids else "",
            tools=tools,
        )

    def _fitting(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages as this template takes them: where it takes one system message, the first ones are joined and later ones
        come from the user."""
        return messages if self.layout.any_system else fit_system(messages)


def _key(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bytes:
    return msgspec.msgpack.encode((messages, tools))


def fit_system(messages: Sequence[Message]) -> list[Message]:
    """The first system messages as one, joined by an empty line; later ones as user messages. Order and content stay."""
    count = next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))
    leading = "\n\n".join(message.content for message in messages[:count])
    later = [msgspec.structs.replace(m, role="user") if m.role == "system" else m for m in messages[count:]]
    return [*([Message(role="system", content=leading)] if count else []), *later]


def load_renderer(model_dir: Path, config: RenderingConfig | None = None) -> Renderer:
    """The renderer of a model directory in Hugging Face layout. Raises ConfigurationError that names file or key."""
    config = config or RenderingConfig()
    if config.renderer == FAMILIES:
        from whippletree.rendering.families import load_family

        return load_family(model_dir, config)
    if config.family:
        raise ConfigurationError(
            f"rendering.family {config.family!r} is not used by rendering.renderer {config.renderer!r}",
            f'set rendering.renderer = "{FAMILIES}" or leave the family out',
        )
    if config.renderer:
        return _custom(config.renderer, model_dir, config)
    codec = load_codec(model_dir / "tokenizer.json", config.cache_bytes)
    template = load_template(model_dir, config)
    layout = measure(template)
    return ChatRenderer(codec, template, layout, _stop_token_ids(codec, layout, model_dir, config), config)


def _stop_token_ids(codec: Codec, layout: Layout, model_dir: Path, config: RenderingConfig) -> list[int]:
    """Ids that end a turn: those of the model's files, the first token of the template's turn end, and the configured ones."""
    ids, own = end_tokens(model_dir)
    named = [codec.token_id(own) if own else None]
    end = codec.encode(layout.turn_end)[:1]
    named += [index for index in end if codec.is_added(index)]
    named += [codec.required_id(token, "rendering.stop_tokens") for token in config.stop_tokens]
    found = sorted({*ids, *(index for index in named if index is not None)})
    if not found:
        raise ConfigurationError(f"{model_dir} names no token that ends a turn", "set rendering.stop_tokens")
    return found


def _custom(name: str, model_dir: Path, config: RenderingConfig) -> Renderer:
    factory = load_named("rendering.renderer", name)
    if not callable(factory):
        raise ConfigurationError(f"rendering.renderer {name!r} is not a function", "it is called with (model_dir, config)")
    return cast(Renderer, factory(model_dir, config))
