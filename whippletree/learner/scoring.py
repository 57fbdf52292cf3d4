"""What a model says about a packed row: logprobs of its trained tokens, and whatever else a loss asks for.

Invariants (tests/learner/test_learner_model.py, tests/learner/test_learner_scoring.py):
- logprobs of a sample in a packed row equal those of the sample alone, to 1e-5 in float32;
- logits are computed only where the sampler spoke, at the run's temperature, in float32 whatever the layers compute in;
- logits computed in pieces give the same logprobs, entropies and gradients;
- entropies and the teacher's top logprobs are computed only where asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from whippletree.learner.model import Row, attention_mask


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
    """Of the N trained tokens of a row: logprobs and entropies [N] (nats), logprobs of given alternatives [N, K], and the
    hidden states that predict the tokens [N, H]."""

    logprobs: torch.Tensor
    entropy: torch.Tensor | None
    top_logprobs: torch.Tensor | None
    hidden: torch.Tensor


def row_logprobs(model: Any, row: Row, temperature: float) -> torch.Tensor:
    """Logprob of each trained token of a row under softmax(logits / temperature): shape [number of targets], float32."""
    return score_row(model, row, ScoreOptions(temperature)).logprobs


def score_row(model: Any, row: Row, options: ScoreOptions, *, alternatives: torch.Tensor | None = None) -> Scores:
    """Scores of a row's trained tokens. `alternatives` are other token ids at the same places, [N, K]."""
    hidden = predicting_states(model, row, bf16=options.bf16)
    ids = row.token_ids[row.targets]
    parts = []
    for start in range(0, max(1, len(ids)), options.logit_tokens):
        piece = slice(start, start + options.logit_tokens)
        others = None if alternatives is None else alternatives[piece]
        arguments = (model.lm_head, hidden[piece], ids[piece], others, options)
        if len(ids) > options.logit_tokens and torch.is_grad_enabled():
            parts.append(checkpoint(_score_tokens, *arguments, use_reentrant=False))
        else:
            parts.append(_score_tokens(*arguments))
    logprobs, entropy, top = (None if found[0] is None else torch.cat(found) for found in zip(*parts, strict=True))
    assert logprobs is not None  # for mypy: every piece has them
    return Scores(logprobs, entropy, top, hidden)


def predicting_states(model: Any, row: Row, *, bf16: bool = False) -> torch.Tensor:
    """The last hidden states that predict a row's trained tokens, each one place before its token: [N, H], float32."""
    with torch.autocast(row.token_ids.device.type, dtype=torch.bfloat16, enabled=bf16):
        hidden = model.model(
            input_ids=row.token_ids[None],
            position_ids=row.positions[None],
            attention_mask=attention_mask(row.segments),
            use_cache=False,
        ).last_hidden_state[0]
    targets = torch.nonzero(row.targets, as_tuple=True)[0]
    states: torch.Tensor = hidden[targets - 1].float()
    return states


def _score_tokens(
    lm_head: Any, hidden: torch.Tensor, ids: torch.Tensor, alternatives: torch.Tensor | None, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    logits = lm_head(hidden).float() / options.temperature
    chosen = logits.gather(-1, ids[:, None])[:, 0]
    total = torch.logsumexp(logits, dim=-1)
    entropy = total - (torch.exp(logits - total[:, None]) * logits).sum(-1) if options.entropy else None
    top = None if alternatives is None else logits.gather(-1, alternatives) - total[:, None]
    return chosen - total, entropy, top


@torch.no_grad()
def best_tokens(model: Any, row: Row, options: ScoreOptions, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` likeliest tokens at each trained place and their logprobs: two tensors of shape [N, count], or
    [N, vocabulary] where that is smaller."""
    hidden = predicting_states(model, row, bf16=options.bf16)
    count = min(count, int(model.config.vocab_size))
    ids, logprobs = [], []
    for start in range(0, len(hidden), options.logit_tokens):
        piece = hidden[start : start + options.logit_tokens]
        found = torch.log_softmax(model.lm_head(piece).float() / options.temperature, -1).topk(count)
        ids.append(found.indices)
        logprobs.append(found.values)
    return torch.cat(ids), torch.cat(logprobs)
