"""whippletree/learner/scoring.py"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from learner_parts import ADVANTAGES, WEIGHTS

from whippletree.learner.model import ModelOptions, load_model
from whippletree.learner.rows import build_row
from whippletree.learner.scoring import ScoreOptions, best_tokens, score_row
from whippletree.types import Sample


def whole_distribution(model: torch.nn.Module, samples: list[Sample], temperature: float) -> torch.Tensor:
    """log π at each trained place, sample after sample, in float64: [N, vocabulary]."""
    rows = []
    for sample in samples:
        ids = torch.tensor(sample.token_ids.astype("int64"))
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0].double() / temperature
        rows.append(torch.log_softmax(logits, -1)[torch.tensor(sample.trained).nonzero()[:, 0] - 1])
    return torch.cat(rows)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_entropies_and_alternatives_are_those_of_the_distribution(
    small_model: Path, sample_batch: list[Sample], temperature: float
):
    model = load_model(small_model)
    row = build_row(sample_batch, ADVANTAGES, WEIGHTS)
    by_id = {sample.sample_id: sample for sample in sample_batch}
    expected = whole_distribution(model, [by_id[name] for name in row.sample_ids], temperature)
    options = ScoreOptions(temperature, entropy=True)
    ids, best = best_tokens(model, row, options, 5)
    top = expected.topk(5)
    assert torch.equal(ids, top.indices)
    torch.testing.assert_close(best.double(), top.values, rtol=1e-4, atol=1e-5)
    found = score_row(model, row, options, alternatives=ids)
    assert found.entropy is not None and found.top_logprobs is not None
    torch.testing.assert_close(found.entropy.double(), -(expected.exp() * expected).sum(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.top_logprobs, best)


def test_pieces_change_neither_scores_nor_gradients(small_model: Path, sample_batch: list[Sample]):
    row = build_row(sample_batch, ADVANTAGES, WEIGHTS)
    results = []
    for pieces in (1024, 7, 1):
        model = load_model(small_model).double()
        found = score_row(model, row, ScoreOptions(0.8, entropy=True, logit_tokens=pieces))
        assert found.entropy is not None
        (found.logprobs.sum() + (found.entropy**2).sum()).backward()
        results.append([found.logprobs.detach(), found.entropy.detach(), *(p.grad for p in model.parameters())])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_nothing_is_computed_that_is_not_asked_for(small_model: Path, sample_batch: list[Sample]):
    found = score_row(load_model(small_model), build_row(sample_batch, ADVANTAGES, WEIGHTS), ScoreOptions(1.0))
    assert found.entropy is None
    assert found.top_logprobs is None


def test_a_row_without_targets_has_no_scores(small_model: Path, sample_batch: list[Sample]):
    row = build_row(sample_batch, ADVANTAGES, WEIGHTS)
    empty = row.select(torch.zeros(len(row.targets), dtype=torch.bool))
    found = score_row(load_model(small_model), empty, ScoreOptions(1.0, entropy=True))
    assert found.logprobs.shape == (0,)


def test_bf16_layers_give_float32_logprobs_near_the_exact_ones(small_model: Path, sample_batch: list[Sample]):
    model, row = load_model(small_model), build_row(sample_batch, ADVANTAGES, WEIGHTS)
    exact = score_row(model, row, ScoreOptions(1.0)).logprobs
    found = score_row(model, row, ScoreOptions(1.0, bf16=True)).logprobs
    assert found.dtype == torch.float32
    assert not torch.equal(found, exact)
    assert (found - exact).abs().mean().item() < 0.1


def test_recomputed_activations_change_no_gradient(small_model: Path, sample_batch: list[Sample]):
    row = build_row(sample_batch, ADVANTAGES, WEIGHTS)
    kept, recomputed = load_model(small_model), load_model(small_model, ModelOptions(activation_checkpointing=True))
    layer_calls = 0

    def count(*_: object) -> None:
        nonlocal layer_calls
        layer_calls += 1

    recomputed.model.layers[0].mlp.register_forward_pre_hook(count)
    for model in (kept, recomputed):
        score_row(model, row, ScoreOptions(1.0)).logprobs.sum().backward()
    assert layer_calls == 2  # forward, and again in the backward pass
    for a, b in zip(kept.parameters(), recomputed.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert kept.state_dict().keys() == recomputed.state_dict().keys()
