"""Small real models' files: a byte-level BPE trained here, with each of several chat templates."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from whippletree.rendering import ChatRenderer, RenderingConfig, load_renderer

TEMPLATES = Path(__file__).parent / "templates"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
CORPUS = [
    'You can run commands. <|im_start|>user Start at amber and submit the code. {"command": "cat amber"} ',
    '{"name": "bash", "arguments": {"command": "submit 17"}} {"next": "birch"} no such file: cedar. ',
    "Grüße aus 東京 🙂 naïve café — done.\n\nthe cat sat on the mat and looked at the next file\n",
] * 8


def write_model(directory: Path, template: str = "", *, normalise: bool = False, strip: bool = False) -> Path:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json (no weights) and return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    if normalise:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=False, rstrip=strip) for mark in MARKS])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "bos_token": {"__type": "AddedToken", "content": "<|endoftext|>"},
        "eos_token": "<|im_end|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if template:
        config["chat_template"] = (TEMPLATES / f"{template}.jinja").read_text()
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [tokenizer.token_to_id("<|endoftext|>")]}))
    return directory


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one model directory per template; `tiny` has no template of its own."""
    root = tmp_path_factory.mktemp("models")
    write_model(root / "tiny")
    for template in ("thinking", "compact", "opened", "dated"):
        write_model(root / template, template)
    write_model(root / "normalising", "thinking", normalise=True)
    write_model(root / "stripping", "thinking", strip=True)
    return root


@pytest.fixture(scope="session")
def renderer(models_dir: Path) -> Callable[..., ChatRenderer]:
    """renderer(model, policy=..., ...) loads one, once per set of settings."""

    @cache
    def load(model: str, **settings: object) -> ChatRenderer:
        template = "tiny" if model == "tiny" else ""
        loaded = load_renderer(models_dir / model, RenderingConfig(template=template, **settings))  # type: ignore[arg-type]
        assert isinstance(loaded, ChatRenderer)
        return loaded

    return load
