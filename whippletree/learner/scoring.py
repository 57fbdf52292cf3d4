"""What a model says about a row: logprobs of its targets, and whatever else a loss asks for.

    row ─► layers (who sees whom: attention.py) ─► the state before each target ─► logits, piece by piece ─► scores
Invariants (tests/learner/test_learner_scoring.py, test_tree_models.py):
- logprobs of a sample in a row, and their gradient, equal those of the sample alone, whatever it shares with others;
- logits are computed only where the sampler spoke, at the run's temperature, in float32 whatever the layers compute in;
- logits computed in pieces give the same logprobs, entropies and gradients;
- entropies and the teacher's top logprobs are computed only where asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from whippletree.learner.attention import look
from whippletree.learner.rows import Row


@dataclass(frozen=True)
class ScoreOptions:
    """How rows are scored. `entropy`: entropies too. `logit_tokens`: tokens whose logits are held at once. `bf16`: layers
    compute in bfloat16.

    Example: ScoreOptions(temperature=1.0, entropy=True)
    """

    temperature: float
    entropy: bool = False
    logit_tokens: int = 1024
    bf16: bool = False


@dataclass(frozen=True)
class Scores:
    """Of the N targets of a row: logprobs and entropies [N] (nats), logprobs of given alternatives [N, K], the hidden states
    that predict the tokens [N, H] (on several ranks: none), and there a value head's values [N]."""

    logprobs: torch.Tensor
    entropy: torch.Tensor | None
    top_logprobs: torch.Tensor | None
    hidden: torch.Tensor
    values: torch.Tensor | None = None


def row_logprobs(model: Any, row: Row, temperature: float) -> torch.Tensor:
    """Logprob of each target of a row under softmax(logits / temperature): shape [N], float32 or better."""
    return score_row(model, row, ScoreOptions(temperature)).logprobs


def score_row(model: Any, row: Row, options: ScoreOptions, *, alternatives: torch.Tensor | None = None) -> Scores:
    """Scores of a row's targets. `alternatives` are other token ids at the same places, [N, K]."""
    hidden = predicting_states(model, row, bf16=options.bf16)
    return score_states(model, hidden, row.token_ids[row.targets], options, alternatives=alternatives)


def score_states(
    model: Any, hidden: torch.Tensor, ids: torch.Tensor, options: ScoreOptions, *, alternatives: torch.Tensor | None = None
) -> Scores:
    """Scores of the tokens `ids` [N] that the states [N, H] predict."""
    parts = []
    for start in range(0, max(1, len(ids)), options.logit_tokens):
        piece = slice(start, start + options.logit_tokens)
        others = None if alternatives is None else alternatives[piece]
        arguments = (model, hidden[piece], ids[piece], others, options)
        if len(ids) > options.logit_tokens and torch.is_grad_enabled():
            parts.append(checkpoint(_score_tokens, *arguments, use_reentrant=False))
        else:
            parts.append(_score_tokens(*arguments))
    logprobs, entropy, top = (None if found[0] is None else torch.cat(found) for found in zip(*parts, strict=True))
    assert logprobs is not None  # for mypy: every piece has them
    return Scores(logprobs, entropy, top, hidden)


def predicting_states(model: Any, row: Row, *, bf16: bool = False) -> torch.Tensor:
    """The last hidden states that predict a row's targets, each that of the token before it on its path: [N, H], in the
    precision of the model's weights."""
    with torch.autocast(row.token_ids.device.type, dtype=torch.bfloat16, enabled=bf16):
        hidden = model.base_model(
            input_ids=row.token_ids[None], position_ids=row.positions[None], use_cache=False, **look(model, row)
        ).last_hidden_state[0]
    states: torch.Tensor = hidden[row.parents[row.targets]].to(model.dtype)
    return states


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


def _score_tokens(
    model: Any, hidden: torch.Tensor, ids: torch.Tensor, alternatives: torch.Tensor | None, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    logits = head(model, hidden) / options.temperature
    chosen = logits.gather(-1, ids[:, None])[:, 0]
    total = torch.logsumexp(logits, dim=-1)
    entropy = total - (torch.exp(logits - total[:, None]) * logits).sum(-1) if options.entropy else None
    top = None if alternatives is None else logits.gather(-1, alternatives) - total[:, None]
    return chosen - total, entropy, top


@torch.no_grad()
def best_tokens(model: Any, row: Row, options: ScoreOptions, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` likeliest tokens at each target and their logprobs: two tensors of shape [N, count], or
    [N, vocabulary] where that is smaller."""
    hidden = predicting_states(model, row, bf16=options.bf16)
    count = min(count, int(model.config.get_text_config().vocab_size))
    ids, logprobs = [], []
    for start in range(0, max(1, len(hidden)), options.logit_tokens):
        piece = hidden[start : start + options.logit_tokens]
        found = torch.log_softmax(head(model, piece) / options.temperature, -1).topk(count)
        ids.append(found.indices)
        logprobs.append(found.values)
    return torch.cat(ids), torch.cat(logprobs)


@torch.no_grad()
def score(model: Any, token_ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Logprobs at temperature 1 of token_ids[1:], each under its prefix: shape [len(token_ids) - 1]."""
    ids = torch.tensor(token_ids)
    logits = model(input_ids=ids[None]).logits[0, :-1].float()
    scores: np.ndarray[Any, np.dtype[np.float32]] = torch.log_softmax(logits, -1).gather(-1, ids[1:, None])[:, 0].numpy()
    return scores
