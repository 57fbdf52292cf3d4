"""Encoding word by word gives what the tokenizer gives, and only where that is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from whippletree.rendering.codec import Codec
from whippletree.rendering.tokenizer_file import TokenizerSpec
from whippletree.rendering.words import WINDOW, WordEncoder, Words, word_encoder

SOURCE = Path(__file__).read_text(encoding="utf-8")
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# The patterns that models of the Llama 3, Qwen 2 and o200k families publish in their tokenizer.json.
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|\s+(?!\S)|\s+")


def isolated(*patterns: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([*(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns), BYTES])


KNOWN: dict[str, pre_tokenizers.PreTokenizer] = {
    "gpt2": GPT2,
    "llama3": isolated(LLAMA3),
    "qwen2": isolated(QWEN2),
    "o200k": isolated(O200K),
    "deepseek": isolated(*DEEPSEEK),
    "smollm2": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), GPT2]),
}


def made(
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    *,
    change: Callable[[dict[str, Any]], None] = lambda spec: None,
    normalizer: normalizers.Normalizer | None = None,
) -> tuple[WordEncoder | None, Tokenizer]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator([SOURCE, "don't DON'T 12345 the cat  sat\r\n"], trainer)
    spec = json.loads(tokenizer.to_str())
    change(spec)
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    return word_encoder(tokenizer, msgspec.convert(spec, TokenizerSpec)), tokenizer


@cache
def known(name: str) -> tuple[WordEncoder, Tokenizer]:
    encoder, tokenizer = made(KNOWN[name])
    assert encoder is not None, name
    return encoder, tokenizer


PLAIN = ("the", " cat", "Sat", "HTTPServer", "don't", "'LL", "'s", "x", " ", "  ", "\n", "\r\n", "\t", "\n\n", "123", "4567")
OTHER = (
    "=",
    "==",
    "/",
    "{",
    "é",
    "e\u0301",
    "日本 語",
    "🙂",
    "\u00a0",
    "\u2028",
    "ſ",
    "\u212a",
    "\x1c",
    "\x85",
    "\x00",
    "'ſ",
    "Ⅷ",
    "ǅ",
)
words = st.sampled_from(PLAIN + OTHER)


@given(text=st.one_of(st.lists(words, max_size=30).map("".join), st.text(max_size=60)))
@pytest.mark.parametrize("name", sorted(KNOWN))
def test_words_encode_as_the_tokenizer_does(name: str, text: str) -> None:
    encoder, tokenizer = known(name)
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    assert encoder.encode(text) == whole == encoder.encode(text)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_long_texts_are_cut_where_no_word_is(name: str) -> None:
    encoder, tokenizer = known(name)
    for text in (SOURCE * 4, "a" * 3 * WINDOW, " " * 2 * WINDOW + "x", ("a b\n" * WINDOW)[: 3 * WINDOW + 1], "é a b " * WINDOW):
        assert encoder.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


def add_normalised_token(spec: dict[str, Any]) -> None:
    spec["added_tokens"] = [
        {"id": 5, "content": "zz", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    ]


def by_dropout(spec: dict[str, Any]) -> None:
    spec["model"]["dropout"] = 0.1


@pytest.mark.parametrize(
    ("pre_tokenizer", "options"),
    [
        (pre_tokenizers.ByteLevel(add_prefix_space=True), {}),
        (pre_tokenizers.Whitespace(), {}),
        (pre_tokenizers.Metaspace(), {}),
        (pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\s"), "removed"), BYTES]), {}),
        (isolated(r"(a)(b)|."), {}),
        (isolated(r"[\p{L}&&[^a]]+"), {}),
        (isolated(r"\p{Alphabetic}+"), {}),
        (isolated(r"[^\n]+"), {}),  # a word may go on across spaces
        (BYTES, {}),  # one word, however long
        (GPT2, {"normalizer": normalizers.Lowercase()}),
        (GPT2, {"change": add_normalised_token}),
        (GPT2, {"change": by_dropout}),
    ],
)
def test_a_tokenizer_that_is_not_known_to_agree_has_no_encoder(
    pre_tokenizer: pre_tokenizers.PreTokenizer, options: dict[str, Any]
) -> None:
    assert made(pre_tokenizer, **options)[0] is None


def test_a_composing_normaliser_and_whole_words_of_the_vocabulary_agree() -> None:
    def ignore_merges(spec: dict[str, Any]) -> None:
        spec["model"]["ignore_merges"] = True

    encoder, tokenizer = made(isolated(LLAMA3), normalizer=normalizers.NFC(), change=ignore_merges)
    assert encoder is not None
    for text in ("cafe\u0301 au lait", "the cat sat", "don't e\u0301 the e\u0301"):
        assert encoder.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_each_word_is_merged_once_and_what_is_remembered_is_bounded() -> None:
    merged: list[str] = []

    def merge(word: str) -> list[int]:
        merged.append(word)
        return [len(word)]

    held = Words(merge, limit=3)
    assert [held[word] for word in ("a", "bb", "a", "bb")] == [(1,), (2,), (1,), (2,)]
    assert merged == ["a", "bb"]
    for number in range(20):
        assert held[str(number)] == (len(str(number)),)
        assert len(held) <= 3
    assert held["x" * 1000] == (1000,)
    assert "x" * 1000 not in held


def test_added_tokens_are_never_taken_for_words() -> None:
    tokenizer = known("gpt2")[1]
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.add_tokens([AddedToken("<|end|>", normalized=False), AddedToken("<pad>", normalized=False, rstrip=True)])
    codec = Codec(tokenizer, msgspec.json.decode(tokenizer.to_str(), type=TokenizerSpec), 1 << 20)
    assert not codec.splits  # one of them swallows the space behind it
    for text in ("a<|end|>b", "<pad>  x", "the cat<|end|> sat"):
        assert codec.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids
