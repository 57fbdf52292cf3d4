"""The tiny model: a from-scratch Qwen3 with its own tokenizer, warmed up to do the trail family sloppily (docs/models.md).

    build_tiny ─► tokenizer (trained on transcripts) ─► fresh weights ─► warm-up (learner/warmup.py) ─► cached directory

The tokenizer takes file names and two-digit codes as units and squeezes all fixed text (the harness's prompt, the frame of a
tool call) into single tokens, so that a whole attempt is some fifty tokens long.

Invariants (tests/learner/test_tiny_model.py):
- the same settings and seed give the same files, and a second call uses the cache; other settings give another directory;
- every file name and every code is one token, alone and inside any text of the family;
- the tokenizer reproduces every text exactly.
This module imports torch and transformers only when something is built.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any, Literal

import msgspec

from whippletree.configuration import Amount, Config, Count
from whippletree.errors import ConfigurationError
from whippletree.learner.captured import draw_surroundings, load_captured
from whippletree.learner.transcripts import Formats, TranscriptFormat
from whippletree.learner.warmup import NOWHERE, Examples, WarmupConfig, warm_up
from whippletree.rendering.config import RenderingConfig
from whippletree.rendering.template import TINY, load_template
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.demonstrator import sloppy_turns
from whippletree.tasks.trail import FIRST_CODE, NAMES, TrailStream

RECIPE = 1  # goes up whenever this file or warmup.py builds other weights from the same settings
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
PADDING, END_OF_TURN = SPECIAL_TOKENS[0], SPECIAL_TOKENS[2]
TOKENIZER_TRANSCRIPTS = 2000


class TinyConfig(Config):
    """Size, tokenizer and warm-up of the tiny model. The run's task source must use the same names and codes."""

    family: TrailFamily = TrailFamily()
    """The family that the model is warmed up on; its held-out tasks are never shown."""
    system: str = "Work with the bash tool."
    """The harness's system prompt, word for word, as the gateway will see it. Not used where `formats` are given."""
    formats: tuple[TranscriptFormat, ...] = ()
    """How the harnesses of the run write attempts down; empty: one, mini-SWE-agent's in tool-call mode with `system`."""
    words: tuple[str, ...] = ()
    """Further words that are one token each wherever they stand, and are among the entries of lists to repeat: those of tasks
    that the model is fine-tuned on afterwards (docs/models.md)."""
    tools: Literal["names", "whole"] = "names"
    """What the chat template lists of the tools that a harness offers: their names, or everything it says of them."""
    hidden_size: Count = 96
    """Width of the model."""
    layers: Count = 2
    """Decoder layers."""
    heads: Count = 4
    """Attention heads."""
    key_value_heads: Count = 2
    """Key-value heads; must divide `heads`."""
    head_dim: Count = 32
    """Width of one head."""
    intermediate_size: Count = 288
    """Width of the feed-forward part."""
    context_length: Count = 512
    """Longest sequence, tokens."""
    initializer_std: Amount = 0.08
    """Standard deviation of the fresh weights. At the usual 0.02 a model of this size does not learn to copy."""
    vocabulary: Count = 1024
    """Most tokens that the tokenizer may have; training stops earlier when nothing is left to merge."""
    warmup: WarmupConfig = WarmupConfig()
    """The supervised warm-up."""

    @property
    def transcript_formats(self) -> tuple[TranscriptFormat, ...]:
        """The formats in use."""
        return self.formats or (TranscriptFormat(system=self.system),)


def build_tiny(cache: Path, config: TinyConfig, *, seed: int) -> Path:
    """The directory (Hugging Face layout) of the warmed-up model for these settings, made once and kept in `cache`.

    The first call takes about a minute of CPU time. Raises ConfigurationError when the sizes do not fit together.
    """
    _check(config)
    target = cache / f"tiny-{_digest(config, seed)}"
    if (target / "config.json").is_file():
        return target
    partial = cache / f".{target.name}.{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _build(partial, config, seed)
        partial.rename(target)
    except OSError:
        if not (target / "config.json").is_file():  # else another process was faster, with the same content
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def train_tokenizer(config: TinyConfig) -> Any:
    """A byte-level BPE `tokenizers.Tokenizer`, trained on demonstrations in the tiny chat format."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    words = sorted({*NAMES[: config.family.names], *config.words}, key=lambda word: (-len(word), word))  # the longest first
    units = "|".join([*map(re.escape, words), "[0-9]{2}"])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(units), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocabulary,
        min_frequency=2,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_tokenizer_texts(config), trainer)
    return tokenizer


def _tokenizer_texts(config: TinyConfig) -> list[str]:
    """Pieces of demonstrations between special tokens, and every unit often enough to become a token."""
    stream = TrailStream(config.family)
    options: dict[str, bool | int | float | str] = {"whole_tools": True} if config.tools == "whole" else {}
    template = load_template(Path(), RenderingConfig(template="tiny", options=options))
    rng = random.Random(f"{config.family.seed}/tokenizer")
    marks = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    formats = Formats(config.transcript_formats)
    texts: list[str] = []
    for index in range(TOKENIZER_TRANSCRIPTS):
        trail, warmup = stream.train(index), config.warmup
        turns = sloppy_turns(trail, config.family, rng, 0.7, lost=warmup.lost, lost_turns=warmup.lost_turns)
        around = draw_surroundings(rng) if formats.captured else NOWHERE
        for found in formats.write(trail, turns, formats.all[index % len(formats.all)], around, rng):
            texts += filter(None, marks.split(template.render(found.messages, found.tools, generation_prompt=False)))
    codes = [str(code) for code in range(FIRST_CODE, FIRST_CODE + config.family.codes)]
    return texts + [*NAMES[: config.family.names], *codes, *config.words] * 10


def _build(directory: Path, config: TinyConfig, seed: int) -> None:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = train_tokenizer(config)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        chat_template=_template_text(config),
        model_max_length=config.context_length,
    ).save_pretrained(str(directory))
    shape = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.key_value_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.context_length,
        initializer_range=config.initializer_std,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END_OF_TURN),
        pad_token_id=tokenizer.token_to_id(PADDING),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(shape)
        examples = Examples(directory, config.family, config.transcript_formats, config.warmup, seed, words=config.words)
        stats = warm_up(model, examples, config.warmup)
    model.save_pretrained(str(directory))
    recipe = {"recipe": RECIPE, "seed": seed, "config": config, "warmup": stats}
    (directory / "recipe.json").write_bytes(msgspec.json.format(msgspec.json.encode(recipe), indent=2))


def _template_text(config: TinyConfig) -> str:
    """The shipped template, told what it lists of tools."""
    chosen = "{%- set whole_tools = true -%}\n" if config.tools == "whole" else ""
    return chosen + TINY.read_text(encoding="utf-8")


def _digest(config: TinyConfig, seed: int) -> str:
    captured = [load_captured(Path(format.captured)) for format in config.formats if format.captured]
    parts = (
        str(RECIPE).encode(),
        str(seed).encode(),
        msgspec.json.encode(config),
        TINY.read_bytes(),
        msgspec.json.encode(captured),
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _check(config: TinyConfig) -> None:
    if config.heads % config.key_value_heads:
        raise ConfigurationError(
            f"model.tiny: heads = {config.heads} is no multiple of key_value_heads = {config.key_value_heads}",
            "change one of them",
        )
    if config.vocabulary < 512:
        raise ConfigurationError(f"model.tiny.vocabulary = {config.vocabulary} is too small", "give at least 512")
    if "" in config.words:
        raise ConfigurationError("model.tiny.words has an empty word", "leave it out")
    TrailStream(config.family)
