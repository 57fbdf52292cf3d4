"""Encoding in segments gives what encoding the whole gives, and encodes no piece twice."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from whippletree.rendering.codec import Codec, load_codec
from whippletree.rendering.segments import SegmentEncoder

MARKS = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|im_", "\n", "\n\n", " ", "é", "user", "1", "the cat"]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
texts = st.lists(st.sampled_from(MARKS), max_size=14).map("".join)


@pytest.fixture(scope="module")
def library(models_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(models_dir / "tiny" / "tokenizer.json"))


@cache
def loaded(directory: Path) -> tuple[Codec, Tokenizer]:
    path = directory / "tokenizer.json"
    return load_codec(path), Tokenizer.from_file(str(path))


@given(text=texts)
@pytest.mark.parametrize("model", ["tiny", "normalising", "stripping"])
def test_segments_encode_as_the_whole_does(models_dir: Path, model: str, text: str) -> None:
    codec, library = loaded(models_dir / model)
    whole = library.encode(text, add_special_tokens=False).ids
    assert codec.encode(text) == whole == codec.encode(text)


def counting(library: Tokenizer, seen: list[str], *, plain: bool = True, limit: int = 1 << 20) -> SegmentEncoder:
    def encode(text: str) -> list[int]:
        seen.append(text)
        return library.encode(text, add_special_tokens=False).ids

    marks = {mark: library.token_to_id(mark) for mark in ("<|im_start|>", "<|im_end|>")}
    encoder = SegmentEncoder(encode, marks, plain=plain, limit=limit)
    seen.clear()
    return encoder


def test_a_shared_system_prompt_is_encoded_once(library: Tokenizer) -> None:
    seen: list[str] = []
    encoder = counting(library, seen)
    system = "<|im_start|>system\n" + "You can run commands. " * 50 + "<|im_end|>\n"
    encoder.encode(system + "<|im_start|>user\nbirch<|im_end|>")
    encoder.encode(system + "<|im_start|>user\ncedar<|im_end|>")
    assert sum("You can run" in text for text in seen) == 1
    assert [text for text in seen if "cedar" in text] == ["user\ncedar"]


def test_memory_is_bounded(library: Tokenizer) -> None:
    seen: list[str] = []
    encoder = counting(library, seen, limit=3000)
    for number in range(200):
        encoder.encode(f"<|im_start|>user\n{number}<|im_end|>")
    seen.clear()
    encoder.encode("<|im_start|>user\n0<|im_end|>")
    encoder.encode("<|im_start|>user\n0<|im_end|>")
    assert seen == ["user\n0"]


def test_tokens_that_look_at_the_text_beside_them_switch_it_off(models_dir: Path, library: Tokenizer) -> None:
    assert load_codec(models_dir / "tiny" / "tokenizer.json").splits
    assert not load_codec(models_dir / "stripping" / "tokenizer.json").splits
    assert not counting(library, [], plain=False).splits


def test_a_tokenizer_that_does_not_agree_has_texts_encoded_whole(library: Tokenizer) -> None:
    """One that sees across an added token: here, one that adds a space before every text."""

    def encode(text: str) -> list[int]:
        return library.encode(" " + text, add_special_tokens=False).ids

    encoder = SegmentEncoder(encode, {"<|im_end|>": library.token_to_id("<|im_end|>")}, plain=True, limit=1 << 20)
    assert not encoder.splits
    assert encoder.encode("a<|im_end|>b") == encode("a<|im_end|>b")


def test_of_two_tokens_that_begin_alike_the_longer_is_found() -> None:
    marks = {"<a>": 1, "<a><b>": 2}
    tokenizer = Tokenizer(models.BPE({character: place + 3 for place, character in enumerate(ALPHABET)} | marks, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    encoder = SegmentEncoder(lambda text: tokenizer.encode(text).ids, marks, plain=True, limit=0)
    assert encoder.splits
    assert encoder.encode("<a><b><a>") == [2, 1]
