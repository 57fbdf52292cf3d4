"""Text ⇄ ids for one tokenizer, exact to the byte.

Invariants (tests/rendering/test_rendering_codec.py):
- decode(a + b) is the text of the bytes of a followed by the bytes of b: no clean-up, no skipped token, no added space;
- decode(encode(text)) == canonical(text), and canonical(text) == text unless the tokenizer itself rewrites text;
- a Detokeniser's pieces, joined, are decode of all ids, wherever the ids are split, also inside a character.
Texts are encoded segment by segment through a cache (segments.py), and word by word where the tokenizer allows it (words.py).
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from whippletree.errors import ConfigurationError
from whippletree.rendering.segments import SegmentEncoder
from whippletree.rendering.tokenizer_file import TokenizerSpec, byte_of
from whippletree.rendering.words import word_encoder

SPACE_MARK = "\u2581"
CACHE_BYTES = 64 << 20
PROBES = ("a", " a", "a  b", "\n\n", "x\r\n\ty ", "é日本語🙂", "{'a': 1}")


def load_codec(path: Path, cache_bytes: int = CACHE_BYTES) -> Codec:
    """Read a `tokenizer.json`. Raises ConfigurationError when it is missing or cannot reproduce text exactly.

    `cache_bytes` bounds the memory for segments that were encoded already.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {path}: {error.strerror}", "give a model directory with a tokenizer.json"
        ) from error
    try:
        spec = msgspec.json.decode(text, type=TokenizerSpec)
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the tokenizers library raises bare Exception for a file that it cannot read
        raise ConfigurationError(f"{path}: not a usable tokenizer file: {error}", "save the tokenizer again") from error
    codec = Codec(tokenizer, spec, cache_bytes)
    for probe in PROBES:
        back = codec.decode(codec.encode(probe))
        if back != probe:
            raise ConfigurationError(
                f"{path}: {probe!r} comes back as {back!r}, so recorded ids cannot be extended", "use a byte-level tokenizer"
            )
    return codec


class Codec:
    """One tokenizer. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, spec: TokenizerSpec, cache_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._pieces = _Pieces(tokenizer, spec)
        self._added = frozenset(token.id for token in spec.added_tokens)
        self.rewrites = spec.normalizer is not None or any(token.lstrip or token.rstrip for token in spec.added_tokens)
        first = [token for token in spec.added_tokens if not token.normalized]
        words = word_encoder(tokenizer, spec)
        self._segments = SegmentEncoder(
            lambda text: self._tokenizer.encode(text, add_special_tokens=False).ids,
            {token.content: token.id for token in first},
            plain=all(token.plain for token in first),
            limit=cache_bytes,
            between=words.encode if words is not None else None,
        )

    @property
    def splits(self) -> bool:
        """True when text is encoded in segments, each remembered; False when only whole texts are."""
        return self._segments.splits

    def encode(self, text: str) -> list[int]:
        """Ids of the text; the text of a special token becomes that token. What was encoded lately is remembered."""
        return self._segments.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included; bytes that are no UTF-8 become U+FFFD; ids without a token are nothing."""
        return self.to_bytes(ids).decode("utf-8", "replace")

    def to_bytes(self, ids: Sequence[int]) -> bytes:
        """The exact bytes behind the ids."""
        return b"".join(map(self._pieces.__getitem__, ids))

    def canonical(self, text: str) -> str:
        """The text as this tokenizer sees it (after its normaliser); the text itself where it rewrites nothing."""
        return self.decode(self.encode(text)) if self.rewrites else text

    def count_through(self, ids: Sequence[int], mark: bytes) -> int:
        """How many of the ids it takes until `mark` has come whole; all of them where it never comes."""
        end = self.to_bytes(ids).find(mark)
        if end < 0:
            return len(ids)
        left = end + len(mark)
        for count, index in enumerate(ids, start=1):
            left -= len(self._pieces[index])
            if left <= 0:
                return count
        return len(ids)

    def token_id(self, token: str) -> int | None:
        """Id of a token by its exact name; None when there is none."""
        index: int | None = self._tokenizer.token_to_id(token)
        return index

    def required_id(self, token: str, setting: str) -> int:
        """Id of a token that a setting names. Raises ConfigurationError when there is none."""
        index = self.token_id(token)
        if index is None:
            raise ConfigurationError(f"{setting}: the tokenizer has no token {token!r}", "write its exact name")
        return index

    def size(self, index: int) -> int:
        """How many bytes stand behind an id."""
        return len(self._pieces[index])

    def is_added(self, index: int) -> bool:
        """True for tokens added beside the vocabulary (marks such as <|im_end|>)."""
        return index in self._added

    def detokeniser(self) -> Detokeniser:
        """A fresh incremental decoder."""
        return Detokeniser(self._pieces)


class Detokeniser:
    """Incremental decode: holds back bytes that do not make a whole character yet."""

    def __init__(self, pieces: _Pieces) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """Text that these further ids settle."""
        return self._decoder.decode(b"".join([self._pieces[index] for index in ids]))

    def flush(self) -> str:
        """What is left: U+FFFD for the bytes of an unfinished character."""
        return self._decoder.decode(b"", final=True)


class _Pieces(dict[int, bytes]):
    """Token id → its bytes, filled in as tokens are met."""

    def __init__(self, tokenizer: Tokenizer, spec: TokenizerSpec) -> None:
        super().__init__({token.id: token.content.encode() for token in spec.added_tokens})
        kinds = _decoder_kinds(spec.decoder)
        if "ByteLevel" not in kinds and "ByteFallback" not in kinds:
            named = ", ".join(sorted(kinds)) or "none"
            raise ConfigurationError(
                f"tokenizer decoder {named} is not byte-exact", "use a byte-level or byte-fallback tokenizer"
            )
        self._tokenizer = tokenizer
        self._byte_level = "ByteLevel" in kinds

    def __missing__(self, index: int) -> bytes:
        token = self._tokenizer.id_to_token(index) if index >= 0 else None
        piece = b"" if token is None else _byte_level(token) if self._byte_level else _byte_fallback(token)
        self[index] = piece
        return piece


def _decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    if not decoder:
        return set()
    if decoder["type"] == "Sequence":
        return {kind for part in decoder["decoders"] for kind in _decoder_kinds(part)}
    return {decoder["type"]}


def _byte_level(token: str) -> bytes:
    """Bytes behind the printable stand-ins of a byte-level vocabulary."""
    table = byte_of()
    return bytes([table[character] for character in token]) if all(c in table for c in token) else token.encode()


def _byte_fallback(token: str) -> bytes:
    """Bytes of a SentencePiece-style token: `<0xE4>` is one byte, U+2581 a space."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(SPACE_MARK, " ").encode()
