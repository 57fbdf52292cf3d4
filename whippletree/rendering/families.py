"""Model families of the `renderers` package, behind protocols.Renderer: its formats and parsers, our tokenizer and bridge.

    messages ─► the family's renderer ─► ids                       render
    recorded ids + the end of those ids, or what the family adds   bridge
    sampled ids ─► the family's parser, again and again ─► deltas  parser (family_parsing.py)

The package is imported on use only and needs neither torch nor transformers; it sees our tokenizer through `FamilyTokenizer`.

Invariants (tests/rendering/test_rendering_families.py):
- bridge, policy "exact": the text of the recorded ids and of those it gives is the text that the family's own render gives;
- bridge, policy "keep": it gives ids wherever "exact" does, and else what the family itself puts after the recorded ids;
- without the package, a configuration that names it is a ConfigurationError that names the extra.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from whippletree.errors import ConfigurationError, RequestError
from whippletree.protocols import Recorded
from whippletree.rendering.bridging import exact_remainder
from whippletree.rendering.caching import ByteCache
from whippletree.rendering.codec import Codec, load_codec
from whippletree.rendering.config import RenderingConfig
from whippletree.rendering.family_parsing import FamilyParser
from whippletree.rendering.layout import PROBE_CALL, PROBE_QUESTION, PROBE_TOOL, lead_of_call, opened_call
from whippletree.rendering.template import message_object, parsed_arguments, tool_object
from whippletree.types import Message, ToolSpec

INSTALL = "pip install 'whippletree[renderers]'"
NO_FAMILY = frozenset({"auto", "custom", "default"})  # names of the package that stand for no family
REFUSALS = (ValueError, TypeError, LookupError, AttributeError, AssertionError)  # what its renderers raise for bad messages
ID_BYTES = 40
TEXT_SHARE = 8


class FamilyTokenizer:
    """What the package needs of a tokenizer, on a Codec."""

    unk_token_id: int | None = None

    def __init__(self, codec: Codec, name_or_path: str, eos_token_id: int | None) -> None:
        self._codec = codec
        self.name_or_path = name_or_path
        self.eos_token_id = eos_token_id

    def encode(self, text: str, *_: object, **__: object) -> list[int]:
        """Ids of the text, nothing added."""
        return self._codec.encode(text)

    def decode(self, token_ids: int | Sequence[int], *_: object, skip_special_tokens: bool = False, **__: object) -> str:
        """Text of the ids; tokens beside the vocabulary are left out where that is asked for."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self._codec.decode([index for index in ids if not (skip_special_tokens and self._codec.is_added(index))])

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int | None] | None:
        """Ids of tokens by name; None where there is none."""
        if isinstance(tokens, str):
            return self._codec.token_id(tokens)
        return [self._codec.token_id(token) for token in tokens]


class FamilyRenderer:
    """One model directory under one family. Safe to use from several threads: the family's renderers keep no state."""

    def __init__(self, codec: Codec, inner: Any, stop_token_ids: list[int], config: RenderingConfig) -> None:
        self.codec = codec
        self.stop_token_ids = stop_token_ids
        self.policy = config.policy
        self._inner = inner
        self._rendered: ByteCache[bytes, tuple[int, ...]] = ByteCache(config.cache_bytes // TEXT_SHARE)
        self._opening = self.render([PROBE_QUESTION], [])
        self._lead = self._call_lead()

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Prompt ids with the generation prompt at the end. Raises RequestError when the family refuses the messages."""
        key = msgspec.msgpack.encode((messages, tools))
        ids = self._rendered.get(key)
        if ids is None:
            ids = tuple(self._render(messages, tools, generation_prompt=True))
            self._rendered.put(key, ids, len(key) + ID_BYTES * len(ids))
        return list(ids)

    def bridge(self, recorded: Recorded, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int] | None:
        """The ids that follow the recorded ones; None where the policy forbids it."""
        if self.policy == "engine":
            return None
        rest = self._exact(self.render(messages, tools), recorded.text)
        return self._kept(recorded, messages, tools) if rest is None and self.policy == "keep" else rest

    def forced(self, tools: Sequence[ToolSpec], name: str) -> list[int]:
        """Ids that begin a call of the tool; [] where the family writes calls in another form than as one JSON object."""
        return self.codec.encode(opened_call(self._lead, name)) if self._lead and tools else []

    def parser(self, tools: Sequence[ToolSpec], stops: Sequence[str] = ()) -> FamilyParser:
        """A fresh parser for one sampled turn. Without tools, calls are content."""
        offered = [tool_object(tool) for tool in tools]

        def parse(token_ids: list[int]) -> Any:
            return self._inner.parse_response(token_ids, tools=offered or None, prompt_ids=self._opening)

        return FamilyParser(parse, self.codec, self.stop_token_ids, calls=bool(tools), stops=stops)

    def to_bytes(self, token_ids: Sequence[int]) -> bytes:
        """The exact bytes behind the ids."""
        return self.codec.to_bytes(token_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included."""
        return self.codec.decode(token_ids)

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> list[int]:
        try:
            ids: list[int] = self._inner.render_ids(
                family_messages(messages),
                tools=[tool_object(tool) for tool in tools] or None,
                add_generation_prompt=generation_prompt,
            )
        except REFUSALS as error:
            raise RequestError(
                f"the model family's renderer refuses these messages: {error!r}", "change the messages or rendering.family"
            ) from error
        return ids

    def _exact(self, rendered: list[int], recorded: bytes) -> list[int] | None:
        """The rendered ids after the recorded text, where one of them begins there; else the text after it, encoded."""
        whole = self.codec.to_bytes(rendered)
        if whole.startswith(recorded):
            ends = np.fromiter(accumulate(map(self.codec.size, rendered)), dtype=np.int64, count=len(rendered))
            place = int(np.searchsorted(ends, len(recorded)))
            if place < len(rendered) and ends[place] == len(recorded):
                return rendered[place + 1 :]
        rest = exact_remainder(self.codec, whole.decode("utf-8", "replace"), recorded)
        return None if rest is None else self.codec.encode(rest)

    def _kept(self, recorded: Recorded, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int] | None:
        prompt, sampled = recorded.prompt.tolist(), recorded.sampled.tolist()
        try:
            bridged = self._inner.bridge_to_next_turn(
                prompt,
                sampled,
                family_messages(messages)[recorded.messages :],
                tools=[tool_object(tool) for tool in tools] or None,
            )
        except REFUSALS as error:
            raise RequestError(
                f"the model family's renderer refuses these messages: {error!r}", "change the messages or rendering.family"
            ) from error
        known = prompt + sampled
        if bridged is None or bridged.token_ids[: len(known)] != known:
            return None
        ids: list[int] = bridged.token_ids[len(known) :]
        return ids

    def _call_lead(self) -> str:
        """What the family writes between the generation prompt and a call's brace; "" where calls have another form."""
        turn = Message(role="assistant", tool_calls=(PROBE_CALL,))
        try:
            prompt = self.decode(self.render([PROBE_QUESTION], [PROBE_TOOL]))
            text = self.decode(self._render([PROBE_QUESTION, turn], [PROBE_TOOL], generation_prompt=False))
        except RequestError:
            return ""
        return lead_of_call(prompt, text) or ""


def family_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as the package takes them; a tool result carries the name of the tool that was called."""
    names: dict[str, str] = {}
    out = []
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}
        entry = message_object(message, parsed_arguments)
        if message.role == "tool" and not message.name and message.tool_call_id in names:
            entry["name"] = names[message.tool_call_id]
        out.append(entry)
    return out


def load_family(model_dir: Path, config: RenderingConfig) -> FamilyRenderer:
    """The renderer of a model directory under `config.family`, or the one that the model's name stands for.

    Raises ConfigurationError when the package is missing, the family is unknown or the tokenizer lacks a token that it needs.
    """
    try:
        package = importlib.import_module("renderers")
        base = importlib.import_module("renderers.base")
        configs = importlib.import_module("renderers.configs")
    except ImportError as error:
        raise ConfigurationError(f'rendering.renderer = "renderers" needs a package: {error}', INSTALL) from error
    codec = load_codec(model_dir / "tokenizer.json", config.cache_bytes)
    name = model_name(model_dir)
    family = config.family or base.MODEL_RENDERER_MAP.get(name, "")
    known = sorted(set(base.MODEL_RENDERER_MAP.values()) - NO_FAMILY)
    if family not in known:
        what = f"rendering.family {family!r} is unknown" if family else f"cannot tell the family of {model_dir}"
        raise ConfigurationError(what, f"set rendering.family to one of {', '.join(known)}")
    retention = {"thinking_retention": "all"} if config.policy == "keep" else {}
    try:
        tokenizer = FamilyTokenizer(codec, name or str(model_dir), None)
        settings = type(configs.config_from_name(family))(**retention)
        inner = package.create_renderer(tokenizer, settings, chat_template_kwargs=dict(config.options) or None)
        return FamilyRenderer(codec, inner, _stop_token_ids(codec, inner, config), config)
    except ConfigurationError:
        raise
    except Exception as error:  # the package raises its own, pydantic's, or what a look-up on the network raised
        raise ConfigurationError(
            f"rendering.family {family!r} does not fit {model_dir}: {error}", "see rendering.family and rendering.options"
        ) from error


def model_name(model_dir: Path) -> str:
    """The model's name on a hub ("Qwen/Qwen3-8B"), from config.json or else as the directory's own name tells it."""
    path = model_dir / "config.json"
    if path.is_file():
        try:
            named = json.loads(path.read_bytes()).get("_name_or_path", "")
        except ValueError as error:
            raise ConfigurationError(f"{path}: {error}", "mend or restore the file") from error
        if named.count("/") == 1 and not named.startswith("/"):
            return str(named)
    for part in reversed(model_dir.parts):
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/", 1)
    return "/".join(model_dir.parts[-2:])


def _stop_token_ids(codec: Codec, inner: Any, config: RenderingConfig) -> list[int]:
    named = {codec.required_id(token, "rendering.stop_tokens") for token in config.stop_tokens}
    return sorted({*inner.get_stop_token_ids(), *named})
