"""Encoding word by word: where a tokenizer cuts text into words by patterns before it merges bytes, each word is merged once.

    text ─► pieces ─┬─ ASCII ─► words (the tokenizer's own patterns, compiled by `re`) ─► ids of each word, remembered
                    └─ other ─► the tokenizer

Only ASCII goes by words, where `re` and the tokenizer's engine read a pattern alike, and only for tokenizers whose steps are
all known here. The library keeps the place of every character through every step, which nobody asks for; this way takes a
tenth of its time. Pieces begin between a letter and a space before a letter, where no known pattern has a word.
Invariants (tests/rendering/test_rendering_words.py):
- what it gives for a text is what the tokenizer gives for it;
- there is no encoder for a tokenizer with a step that is not known, or that fails a probe;
- what it remembers is bounded.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer

from whippletree.errors import WhippletreeError
from whippletree.rendering.tokenizer_file import TokenizerSpec, byte_of

BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # the library's own, after GPT-2's
PLAIN_NORMALISERS = {"NFC", "NFD", "NFKC", "NFKD"}  # they leave ASCII alone
SCRIPTS = {"Han", "Hiragana", "Katakana", "Hangul", "Thai", "Arabic", "Cyrillic", "Greek", "Hebrew", "Devanagari"}
ASCII = [chr(code) for code in range(128)]
NOTHING = "\uffff"  # in no ASCII text
KNOWN_WORDS = 200_000
LONGEST_WORD = 64  # characters; what is longer is seldom met twice
WINDOW = 8_192  # characters that are cut into words at once: other threads run in between
PROBES = 300  # texts of which each must come out alike
SPACES = (" ", "  ", "\n", "\n\n", "\t", "\r\n", "a b", "x y", "\u00a0")
KINDS = (
    *SPACES,
    "'s",
    "'LL",
    "don't",
    "123",
    "4567890",
    "ab",
    "Word",
    "CamelCase",
    "_",
    "==",
    "{}",
    "é",
    "e\u0301",
    "日本",
    "🙂",
    "ſ",
)

Split = Callable[[str], list[str]]
Encode = Callable[[str], Sequence[int]]


class _Unknown(WhippletreeError):
    """A step of a tokenizer that is not read here."""


class Words(dict[str, tuple[int, ...]]):
    """Word → its ids, filled in as words are met; emptied where it holds `limit` of them."""

    def __init__(self, merge: Encode, limit: int = KNOWN_WORDS) -> None:
        super().__init__()
        self._merge = merge
        self._limit = limit

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(self._merge(word))
        if len(word) <= LONGEST_WORD:
            if len(self) >= self._limit:
                self.clear()
            self[word] = ids
        return ids


class WordEncoder:
    """Encodes text through a cache of words. `encode` is the tokenizer's own."""

    def __init__(self, splits: Sequence[Split], words: Words, encode: Encode) -> None:
        self._splits = splits
        self._words = words
        self._encode = encode

    def encode(self, text: str) -> list[int]:
        """Ids of the text."""
        ids: list[int] = []
        for piece in _pieces(text):
            if not piece.isascii():
                ids += self._encode(piece)
                continue
            for known in map(self._words.__getitem__, self._cut(piece)):
                ids += known
        return ids

    def _cut(self, text: str) -> list[str]:
        words = self._splits[0](text) if self._splits else [text]
        for split in self._splits[1:]:
            words = [part for word in words for part in (split(word) if len(word) > 1 else (word,))]
        return words

    def cuts_at_borders(self) -> bool:
        """Whether a word never goes on beyond a border."""
        ends = ["ab", "Z", "the", "O", "x"]
        return all(len(self._cut(f"{one} {other}")) > len(self._cut(one)) for one in ends for other in ends)


def word_encoder(tokenizer: Tokenizer, spec: TokenizerSpec) -> WordEncoder | None:
    """The encoder for a tokenizer; None where it is not known to give what the tokenizer gives. `spec` is the tokenizer's."""
    try:
        splits = _splits(spec)
    except (_Unknown, re.error, KeyError, TypeError):
        return None
    written = {byte: character for character, byte in byte_of().items() if byte < 128}
    model = tokenizer.model

    def merge(word: str) -> list[int]:
        return [token.id for token in model.tokenize(word.translate(written))]

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    encoder = WordEncoder(splits, Words(merge), encode)
    agrees = encoder.cuts_at_borders() and all(encoder.encode(text) == encode(text) for text in _probes())
    return encoder if agrees else None


def _probes() -> Iterator[str]:
    """Text of every kind, and one longer than a window."""
    draw = random.Random(1)
    for number in range(PROBES):
        yield "".join(draw.choices(KINDS, k=24) if number % 2 else draw.choices(ASCII, k=48))
    yield "".join(draw.choices(KINDS, k=WINDOW))


_BORDER = re.compile(r"[A-Za-z](?= [A-Za-z])")
_FOREIGN = re.compile(r"[^\x00-\x7f]+")


def _pieces(text: str) -> Iterator[str]:
    """The text, cut at borders: around characters beyond ASCII, and after about WINDOW characters."""
    start = 0
    if not text.isascii():
        for foreign in _FOREIGN.finditer(text):
            if foreign.start() < start:
                continue
            left, border = _border_before(text, start, foreign.start()), _BORDER.search(text, foreign.end())
            yield from _windows(text[start:left])
            start = border.end() if border is not None else len(text)
            yield text[left:start]
    yield from _windows(text[start:])


def _border_before(text: str, start: int, place: int) -> int:
    """The last border in text[start:place], or `start`."""
    while (place := text.rfind(" ", start + 1, place)) > 0:
        if _BORDER.match(text, place - 1) is not None:
            return place
    return start


def _windows(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > WINDOW and (border := _BORDER.search(text, start + WINDOW)) is not None:
        yield text[start : border.end()]
        start = border.end()
    if start < len(text):
        yield text[start:]


def _splits(spec: TokenizerSpec) -> list[Split]:
    """The tokenizer's steps. Raises _Unknown for one that is not read here."""
    if spec.model.type != "BPE" or spec.model.dropout or spec.model.byte_fallback:
        raise _Unknown("the model", "")
    if any(token.normalized for token in spec.added_tokens):
        raise _Unknown("an added token that is looked for in normalised text", "")
    for step in _steps(spec.normalizer, "normalizers"):
        if step["type"] not in PLAIN_NORMALISERS:
            raise _Unknown(step["type"], "")
    steps = _steps(spec.pre_tokenizer, "pretokenizers")
    if not steps or steps[-1]["type"] != "ByteLevel" or any(step["type"] == "ByteLevel" for step in steps[:-1]):
        raise _Unknown("bytes are not written last", "")
    return [split for step in steps if (split := _split(step)) is not None]


def _steps(step: dict[str, Any] | None, inside: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [inner for part in step[inside] for inner in _steps(part, inside)]
    return [step]


def _split(step: dict[str, Any]) -> Split | None:
    """How a step cuts text; None where it does not."""
    kind = step["type"]
    if kind == "ByteLevel":
        if step.get("add_prefix_space"):
            raise _Unknown("a space before every text", "")
        return _by_pattern(BYTE_LEVEL) if step.get("use_regex", True) else None
    if kind == "Digits":
        return _by_pattern(r"\p{N}|\P{N}+" if step.get("individual_digits") else r"\p{N}+|\P{N}+")
    if kind == "Split" and step["behavior"] == "Isolated" and not step.get("invert"):
        pattern = step["pattern"]
        return _by_pattern(pattern["Regex"] if "Regex" in pattern else re.escape(pattern["String"]))
    raise _Unknown(kind, "")


def _by_pattern(pattern: str) -> Split:
    compiled = re.compile(_for_ascii(pattern), re.ASCII)
    if compiled.groups:
        raise _Unknown("a pattern with groups that capture", "")
    whole = re.compile(f"({compiled.pattern})", re.ASCII)
    find, cut = compiled.findall, whole.split

    def split(text: str) -> list[str]:
        words: list[str] = find(text)
        if len("".join(words)) == len(text):
            return words
        return [word for word in cut(text) if word]

    return split


_ESCAPE = re.compile(r"\\(?:([pP])\{(\^?)(\w+)\}|.)|(\[\^?\]?)|(\])|(&&)", re.DOTALL)


def _for_ascii(pattern: str) -> str:
    """The pattern with its Unicode properties written as the ASCII characters that have them. Raises _Unknown."""
    inside = False

    def written(match: re.Match[str]) -> str:
        nonlocal inside
        negated, name = match[1], match[3]
        if name is not None:
            within = _having(name, (negated == "P") != bool(match[2]))
            return within if inside else f"[{within}]"
        if match[4] and inside:
            raise _Unknown("a class in a class", "")
        if match[6] and inside:
            raise _Unknown("an intersection of classes", "")
        inside = (inside or bool(match[4])) and not match[5]
        return match[0]

    return _ESCAPE.sub(written, pattern)


def _having(name: str, negated: bool) -> str:
    """The ASCII characters with a property, as the inside of a class."""
    if name in SCRIPTS:
        found: set[str] = set()
    elif len(name) <= 2:
        found = {character for character in ASCII if unicodedata.category(character).startswith(name)}
    else:
        raise _Unknown(name, "")
    characters = [character for character in ASCII if (character in found) != negated]
    return "".join(map(re.escape, characters)) or NOTHING
