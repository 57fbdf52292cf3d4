"""Answers of the scripted engine from a file.

Invariants (tests/engines/test_scripted_server.py): a text is encoded by the model's own tokenizer; what cannot be used names
the file and the entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from whippletree.engines.config import ScriptedConfig
from whippletree.errors import ConfigurationError, words_of
from whippletree.types import Struct

if TYPE_CHECKING:
    from whippletree.rendering.codec import Codec


class ScriptFile(Struct):
    """Answers as token ids, none where answers are random. `vocabulary`: larger than every id of the answers and the model.

    Example: ScriptFile(answers=[[5, 6, 2]], vocabulary=512)
    """

    answers: list[list[int]]
    vocabulary: int

    def repeated(self) -> Callable[[Sequence[int]], Sequence[int]]:
        """A script that gives the answers in turn, over and over."""
        turns = itertools.cycle(self.answers)
        return lambda prompt_ids: next(turns)


def load_script(config: ScriptedConfig) -> ScriptFile:
    """The configured script. Raises ConfigurationError."""
    codec, size = _codec(Path(config.model) / "tokenizer.json") if config.model else (None, 1)
    answers = [_ids(entry, place, config, codec) for place, entry in enumerate(_entries(config.script))]
    return ScriptFile(answers=answers, vocabulary=max(size, config.vocabulary, *(max(answer) + 1 for answer in answers)))


def _codec(path: Path) -> tuple[Codec, int]:
    """The tokenizer and its vocabulary's size. Raises ConfigurationError."""
    from tokenizers import Tokenizer

    from whippletree.rendering.codec import load_codec

    codec = load_codec(path)
    return codec, Tokenizer.from_file(str(path)).get_vocab_size()


def _entries(path: str) -> list[str | list[int]]:
    if not path:
        return []
    try:
        entries = msgspec.json.decode(Path(path).read_bytes(), type=list[str | list[int]])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(
            f"engine.script {path}: {words_of(error)}", "write a JSON list of answers, each a text or a list of token ids"
        ) from error
    if not entries:
        raise ConfigurationError(f"engine.script {path} is empty", "write at least one answer")
    return entries


def _ids(entry: str | list[int], place: int, config: ScriptedConfig, codec: Codec | None) -> list[int]:
    where = f"engine.script {config.script}, entry {place}"
    if isinstance(entry, list):
        ids = entry
    elif codec is None:
        raise ConfigurationError(f"{where} is a text and engine.model is not set", "name the model whose tokenizer encodes it")
    else:
        stop = codec.token_id(config.stop_token) if config.stop_token else None
        if config.stop_token and stop is None:
            raise ConfigurationError(
                f"engine.stop_token {config.stop_token!r} is no token of {config.model}", "name the token that ends a turn"
            )
        ids = codec.encode(entry) + ([] if stop is None else [stop])
    if not ids or min(ids) < 0:
        raise ConfigurationError(f"{where} has no usable token id", "an answer has at least one, the stop token say")
    return ids
