"""The policy on the learner's side: a transformers causal language model, and packed rows.

Invariants (tests/learner/test_learner_model.py):
- a row's columns beyond the required ones are None where nothing needs them;
- only what is asked for is trained, and no dropout is active: the trained distribution is the sampled one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from whippletree.errors import ConfigurationError

SHARED = -1
"""Segment number of the beginning that all samples of a row share."""


@dataclass(frozen=True)
class Row:
    """Samples laid end to end. All columns have shape [T]; `segments` numbers the samples of the row from 0, SHARED marks
    the tokens that all of them begin with, laid once at the row's beginning.

    `targets` marks trained tokens; for those `sampler_logprobs`, `versions`, `advantages` and `weights` are set, and whichever
    of the other columns a loss needs: logprobs of the learner before the update (`proximal`), of a reference and of a teacher,
    the teacher's K best tokens (shape [T, K]), and a critic's values before the update and returns. What stands at other places
    has no influence, whatever it is.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    segments: torch.Tensor
    targets: torch.Tensor
    sampler_logprobs: torch.Tensor
    versions: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    sample_ids: tuple[str, ...]
    proximal_logprobs: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None
    teacher_logprobs: torch.Tensor | None = None
    teacher_top_ids: torch.Tensor | None = None
    teacher_top_logprobs: torch.Tensor | None = None
    old_values: torch.Tensor | None = None
    returns: torch.Tensor | None = None


def load_model(directory: Path, *, train_top_layers: int = 0, activation_checkpointing: bool = False) -> Any:
    """A causal language model in float32 from a Hugging Face directory. Raises ConfigurationError when it cannot be read."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(str(directory), dtype=torch.float32, attn_implementation="sdpa")
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"cannot load a model from {directory}: {error}", "give a Hugging Face directory with config.json and *.safetensors"
        ) from error
    model.eval()  # no dropout: the trained distribution is the sampled one
    if train_top_layers:
        _freeze_below(model, train_top_layers)
    if activation_checkpointing:
        _recompute_activations(model)
    return model


def load_frozen(directory: Path) -> Any:
    """A model that only scores: a reference or a teacher. Raises ConfigurationError."""
    return load_model(directory).requires_grad_(False)


def _recompute_activations(model: Any) -> None:
    """Layers keep only their inputs; the backward pass computes what is inside them again."""
    for layer in model.model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _freeze_below(model: Any, top: int) -> None:
    layers = model.model.layers
    if top > len(layers):
        raise ConfigurationError(f"learner.train_top_layers = {top}, but the model has {len(layers)} layers", "lower it")
    model.requires_grad_(False)
    for layer in layers[len(layers) - top :]:
        layer.requires_grad_(True)
    model.model.norm.requires_grad_(True)


def attention_mask(segments: torch.Tensor) -> torch.Tensor:
    """Causal mask inside each segment and towards the shared beginning: [T] segment numbers → bool [1, 1, T, T], True where
    attention is allowed."""
    length = segments.shape[0]
    visible = (segments[:, None] == segments[None, :]) | (segments == SHARED)[None, :]
    return (visible & torch.ones(length, length, dtype=torch.bool).tril())[None, None]


@torch.no_grad()
def score(model: Any, token_ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Logprobs at temperature 1 of token_ids[1:], each under its prefix: shape [len(token_ids) - 1]."""
    ids = torch.tensor(token_ids)
    logits = model(input_ids=ids[None]).logits[0, :-1].float()
    scores: np.ndarray[Any, np.dtype[np.float32]] = torch.log_softmax(logits, -1).gather(-1, ids[1:, None])[:, 0].numpy()
    return scores
