"""The policy on the learner's side: a transformers causal language model and its logprobs on packed rows.

Invariants (tests/learner/test_learner_model.py, test_tree_models.py):
- logprobs of a sample in a row, and their gradient, equal those of the sample alone, whatever it shares with others;
- a model for which that does not hold is refused when it is loaded, by trying;
- logits are computed only where the sampler spoke, at the run's temperature, in float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from whippletree.batching.trees import Packing
from whippletree.errors import ConfigurationError
from whippletree.learner.attention import Way, choose, look
from whippletree.learner.rows import Row


def load_model(directory: Path, *, train_top_layers: int = 0, packing: Packing = "tree", attention: Way = "auto") -> Any:
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
    return prepare_model(model, train_top_layers=train_top_layers, packing=packing, attention=attention)


def prepare_model(model: Any, *, train_top_layers: int = 0, packing: Packing = "tree", attention: Way = "auto") -> Any:
    """Make a model ready to train, in place. Raises ConfigurationError when it cannot compute rows of that packing."""
    model.eval()  # no dropout: the trained distribution is the sampled one
    if packing != "single":
        choose(model, lambda model, row: row_logprobs(model, row, 1.0), attention, share=packing == "tree")
    if train_top_layers:
        _freeze_below(model, train_top_layers)
    return model


def _freeze_below(model: Any, top: int) -> None:
    layers = model.model.layers
    if top > len(layers):
        raise ConfigurationError(f"learner.train_top_layers = {top}, but the model has {len(layers)} layers", "lower it")
    model.requires_grad_(False)
    for layer in layers[len(layers) - top :]:
        layer.requires_grad_(True)
    model.model.norm.requires_grad_(True)


def row_hidden(model: Any, row: Row) -> torch.Tensor:
    """The last hidden state of each token of a row: shape [T, width]."""
    hidden: torch.Tensor = model.base_model(
        input_ids=row.token_ids[None], position_ids=row.positions[None], use_cache=False, **look(model, row)
    ).last_hidden_state[0]
    return hidden


def head(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Logits of hidden states, with what some families do to them: [..., width] → [..., vocabulary], float32 or better.

    Cohere multiplies by `logit_scale`, Granite divides by `logits_scaling`, Gemma squeezes by c tanh(x / c).
    """
    config = model.config.get_text_config()
    logits: torch.Tensor = model.get_output_embeddings()(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if scale := getattr(config, "logit_scale", None):
        logits = logits * scale
    if scaling := getattr(config, "logits_scaling", None):
        logits = logits / scaling
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = torch.tanh(logits / cap) * cap
    return logits


def row_logprobs(model: Any, row: Row, temperature: float) -> torch.Tensor:
    """Logprob of each target of a row under softmax(logits / temperature): shape [N], float32."""
    hidden = row_hidden(model, row)
    logits = head(model, hidden[row.parents[row.targets]]) / temperature
    chosen = logits.gather(-1, row.token_ids[row.targets][:, None])[:, 0]
    logprobs: torch.Tensor = chosen - torch.logsumexp(logits, dim=-1)
    return logprobs


@torch.no_grad()
def score(model: Any, token_ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Logprobs at temperature 1 of token_ids[1:], each under its prefix: shape [len(token_ids) - 1]."""
    ids = torch.tensor(token_ids)
    logits = model(input_ids=ids[None]).logits[0, :-1].float()
    scores: np.ndarray[Any, np.dtype[np.float32]] = torch.log_softmax(logits, -1).gather(-1, ids[1:, None])[:, 0].numpy()
    return scores
