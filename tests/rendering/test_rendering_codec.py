"""Codec: exact to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from whippletree.errors import ConfigurationError
from whippletree.rendering.codec import Codec, load_codec

VOCABULARY = 427


@pytest.fixture(scope="module")
def codec(models_dir: Path) -> Codec:
    return load_codec(models_dir / "tiny" / "tokenizer.json")


@pytest.fixture(scope="module")
def normalising(models_dir: Path) -> Codec:
    return load_codec(models_dir / "normalising" / "tokenizer.json")


ids = st.lists(st.integers(0, VOCABULARY - 1), max_size=40)


@given(text=st.text(max_size=60))
def test_any_text_comes_back_exactly(codec: Codec, text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert codec.decode(codec.encode(text)) == text


@given(first=ids, second=ids)
def test_decode_is_the_text_of_the_joined_bytes(codec: Codec, first: list[int], second: list[int]) -> None:
    table = codec._pieces
    joined = b"".join(table[index] for index in first) + b"".join(table[index] for index in second)
    assert codec.decode(first + second) == joined.decode("utf-8", "replace")


@given(data=st.data(), sampled=ids)
def test_the_detokeniser_gives_the_same_text_for_any_split(codec: Codec, data: st.DataObject, sampled: list[int]) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sampled)), max_size=5)))
    detokeniser = codec.detokeniser()
    pieces = [detokeniser.feed(sampled[a:b]) for a, b in zip([0, *cuts], [*cuts, len(sampled)], strict=True)]
    assert "".join(pieces) + detokeniser.flush() == codec.decode(sampled)


@settings(max_examples=50)
@given(sampled=ids)
def test_decode_agrees_with_the_tokenizers_library(codec: Codec, models_dir: Path, sampled: list[int]) -> None:
    library = Tokenizer.from_file(str(models_dir / "tiny" / "tokenizer.json"))
    assert codec.decode(sampled) == library.decode(sampled, skip_special_tokens=False)


def test_a_character_split_over_tokens_is_held_back(codec: Codec) -> None:
    detokeniser = codec.detokeniser()
    token_ids = codec.encode("🀄")
    assert len(token_ids) > 1
    assert [detokeniser.feed([index]) for index in token_ids] == [""] * (len(token_ids) - 1) + ["🀄"]
    assert detokeniser.feed(token_ids[:1]) == ""
    assert detokeniser.flush() == "\ufffd"


def test_special_tokens_in_text_become_tokens_and_stay_in_the_text(codec: Codec) -> None:
    token_ids = codec.encode("<|im_start|>user\nhi<|im_end|>")
    assert token_ids[0] == codec.token_id("<|im_start|>")
    assert token_ids[-1] == codec.token_id("<|im_end|>")
    assert codec.decode(token_ids) == "<|im_start|>user\nhi<|im_end|>"


def test_ids_beyond_the_vocabulary_are_nothing(codec: Codec) -> None:
    assert codec.decode([VOCABULARY + 5000, *codec.encode("a"), -1]) == "a"


@given(text=st.text(alphabet="ae\u0301\u0308 <|im_end|>\n", max_size=20))
def test_canonical_is_what_comes_back_when_the_tokenizer_rewrites_text(normalising: Codec, text: str) -> None:
    assert normalising.decode(normalising.encode(text)) == normalising.canonical(text)


def test_only_a_tokenizer_that_rewrites_text_has_another_canonical_text(codec: Codec, normalising: Codec) -> None:
    assert codec.canonical("e\u0301") == "e\u0301"
    assert normalising.canonical("e\u0301") == "\u00e9"


def byte_fallback_tokenizer(path: Path, *, prefix_space: bool) -> Path:
    """A SentencePiece-style tokenizer of single characters with byte fallback."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *map(chr, range(0x21, 0x7F))]
    tokenizer = Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True))
    replace = normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace]) if prefix_space else replace
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.save(str(path))
    return path


def test_a_byte_fallback_tokenizer_is_exact_too(tmp_path: Path) -> None:
    codec = load_codec(byte_fallback_tokenizer(tmp_path / "tokenizer.json", prefix_space=False))
    assert codec.decode(codec.encode("a  b 東京\n🙂")) == "a  b 東京\n🙂"


def test_a_tokenizer_that_adds_a_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="comes back as"):
        load_codec(byte_fallback_tokenizer(tmp_path / "tokenizer.json", prefix_space=True))


def test_a_tokenizer_without_bytes_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigurationError, match="not byte-exact"):
        load_codec(tmp_path / "tokenizer.json")


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*tokenizer\.json"):
        load_codec(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "Nonsense"}}))
    with pytest.raises(ConfigurationError, match="not a usable tokenizer file"):
        load_codec(tmp_path / "tokenizer.json")
