"""Models on the learner's side: transformers causal language models, loaded, tried on rows and made ready to train or to score.

Invariants (tests/learner/test_learner_model.py, test_tree_models.py):
- a model for which a sample in a row is not what it is alone is refused when it is loaded, by trying, as it will be run: with
  its adapters, with recomputed activations, and in bf16 too where its layers compute so;
- only what is asked for is trained, and no dropout is active: the trained distribution is the sampled one;
- recomputed activations change no gradient.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils.checkpoint import checkpoint

from whippletree.batching.trees import Packing
from whippletree.errors import ConfigurationError
from whippletree.learner.attention import Way, check_rows, choose
from whippletree.learner.config import LoRAConfig
from whippletree.learner.lora import add_adapters
from whippletree.learner.rows import Row
from whippletree.learner.scoring import ScoreOptions, score_row
from whippletree.types import Struct


class ModelOptions(Struct):
    """How a model is to be run and which part of it trains. `train_top_layers` of 0 and `lora.rank` of 0 train everything.

    Example: ModelOptions(packing="tree", attention="auto", bf16=True)
    """

    packing: Packing = "tree"
    attention: Way = "auto"
    bf16: bool = False
    activation_checkpointing: bool = False
    train_top_layers: int = 0
    lora: LoRAConfig = LoRAConfig()

    def whole(self) -> ModelOptions:
        """The same for a model that trains whole or not at all."""
        return msgspec.structs.replace(self, train_top_layers=0, lora=LoRAConfig())


def load_model(directory: Path, options: ModelOptions = ModelOptions()) -> Any:  # noqa: B008 - immutable
    """A causal language model in float32 from a Hugging Face directory.

    Raises ConfigurationError when it cannot be read, and when it cannot compute rows of that packing.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(str(directory), dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"cannot load a model from {directory}: {error}", "give a Hugging Face directory with config.json and *.safetensors"
        ) from error
    return prepare_model(model, options)


def load_frozen(directory: Path, options: ModelOptions = ModelOptions()) -> Any:  # noqa: B008 - immutable
    """A model that only scores: a reference or a teacher. Raises ConfigurationError."""
    return load_model(directory, options.whole()).requires_grad_(False)


def prepare_model(model: Any, options: ModelOptions = ModelOptions()) -> Any:  # noqa: B008 - immutable
    """Make a model ready, in place. Raises ConfigurationError when it cannot compute rows of that packing."""
    model.eval()  # no dropout: the trained distribution is the sampled one
    if options.train_top_layers:
        _freeze_below(model, options.train_top_layers)
    if options.lora.rank:
        add_adapters(model, options.lora)
    if options.activation_checkpointing:
        _recompute_activations(model)
    if options.packing != "single":
        share = options.packing == "tree"
        choose(model, _logprobs, options.attention, share=share)
        if options.bf16:
            check_rows(model, _logprobs_bf16, share=share, dtype=torch.bfloat16)
    return model


def _logprobs(model: Any, row: Row) -> torch.Tensor:
    return score_row(model, row, ScoreOptions(1.0)).logprobs


def _logprobs_bf16(model: Any, row: Row) -> torch.Tensor:
    return score_row(model, row, ScoreOptions(1.0, bf16=True)).logprobs


def _layers(model: Any) -> tuple[Any, Any]:
    """The module that holds the list of layers, and that list, whatever the family calls them. Raises ConfigurationError where
    there is none."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    for parent in model.base_model.modules():
        for child in parent.children():
            if isinstance(child, torch.nn.ModuleList) and all(isinstance(one, GradientCheckpointingLayer) for one in child):
                return parent, child
    raise ConfigurationError(
        f"{type(model).__name__} has no list of layers", "leave learner.train_top_layers and activation_checkpointing off"
    )


def _recompute_activations(model: Any) -> None:
    """Layers keep only their inputs; the backward pass computes what is inside them again."""
    for layer in _layers(model)[1]:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _freeze_below(model: Any, top: int) -> None:
    """Train the `top` layers and what comes behind them (the last norm)."""
    parent, layers = _layers(model)
    if top > len(layers):
        raise ConfigurationError(f"learner.train_top_layers = {top}, but the model has {len(layers)} layers", "lower it")
    model.requires_grad_(False)
    for layer in layers[len(layers) - top :]:
        layer.requires_grad_(True)
    children = list(parent.children())
    for child in children[children.index(layers) + 1 :]:
        child.requires_grad_(True)
