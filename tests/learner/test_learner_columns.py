"""whippletree/learner/columns.py"""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest
import torch
from learner_parts import ADVANTAGES, WEIGHTS, make_samples

from whippletree.errors import NonFiniteError
from whippletree.learner.columns import given, make_tokens, refuse_non_finite, token_names, weighted
from whippletree.learner.rows import Row, build_row


def spoilt(row: Row, chosen: torch.Tensor) -> Row:
    """The row with NaN in every float column of the targets that are not chosen."""
    names = ("sampler_logprobs", "advantages", "returns", "teacher_top_logprobs")
    found = {name: getattr(row, name).clone() for name in names}
    for values in found.values():
        values[~chosen] = math.nan
    return replace(row, **found)


def test_only_weighted_targets_are_selected():
    row = build_row(make_samples(), ADVANTAGES, {**WEIGHTS, "s1": 0.0})
    count = len(row.targets)
    row = replace(row, returns=torch.rand(count), teacher_top_logprobs=torch.rand(count, 3))
    other = row.samples == row.sample_ids.index("s1")
    assert 0 < int(other.sum()) < count
    found = weighted(row)
    assert torch.equal(found.samples, row.samples[~other])
    assert torch.equal(found.targets, row.targets[~other])
    assert torch.equal(weighted(found).targets, found.targets)
    assert found.token_ids is row.token_ids and found.proximal_logprobs is None
    with pytest.raises(NonFiniteError):
        given(spoilt(row, ~other))
    clean, kept = given(found), given(weighted(spoilt(row, ~other)))
    assert clean.keys() == kept.keys() == {"sampler_logprobs", "advantages", "weights", "returns", "teacher_top_logprobs"}
    assert all(torch.equal(clean[name], kept[name]) for name in clean)
    assert {len(values) for values in kept.values()} == {count - int(other.sum())}


def test_tokens_that_are_not_finite_are_named_a_few_of_them():
    row = build_row(make_samples(), ADVANTAGES, WEIGHTS)
    bad = torch.zeros(len(row.targets), dtype=torch.bool)
    bad[[0, 3, 5, 6, 7]] = True

    def named(n: int) -> str:
        return f"token {row.positions[row.targets[n]]} of sample {row.sample_ids[int(row.samples[n])]}"

    assert token_names(row, bad) == f"{named(0)}, {named(3)}, {named(5)} and 2 more"
    values = torch.where(bad, math.inf, 0.0)
    with pytest.raises(NonFiniteError, match="loss inf at token") as caught:
        refuse_non_finite(row, {"loss": values})
    assert named(5) in caught.value.cause
    wide = torch.zeros(len(row.targets), 4)
    wide[1, 2] = math.nan
    with pytest.raises(NonFiniteError, match=f"top nan at {named(1)} "):
        refuse_non_finite(row, {"top": wide})


def test_a_token_that_two_samples_trained_is_named_by_the_sample_whose_number_it_is():
    first, second = make_samples()[3], make_samples()[3]
    row = build_row([first, msgspec.structs.replace(second, sample_id="s9")], ADVANTAGES, {**WEIGHTS, "s9": 0.1})
    half = len(row.targets) // 2
    assert torch.equal(row.targets[:half], row.targets[half:])
    bad = torch.arange(len(row.targets)) == half
    assert token_names(row, bad) == f"token {row.positions[row.targets[half]]} of sample s9"


@pytest.mark.parametrize("old", ["sampler", "learner"])
@pytest.mark.parametrize("brought", [True, False])
def test_the_ratio_is_taken_to_the_policy_that_is_asked_for(old: str, brought: bool):
    row = build_row(make_samples(), ADVANTAGES, WEIGHTS)
    if brought:
        row = replace(row, proximal_logprobs=torch.full((len(row.targets),), -9.0))
    logprobs = torch.rand(len(row.targets), requires_grad=True)
    tokens = make_tokens(row, given(row), {"logprobs": logprobs, "entropy": None}, old)
    proximal = torch.full_like(logprobs, -9.0) if brought else logprobs.detach()
    assert torch.equal(tokens.proximal_logprobs, proximal)
    assert torch.equal(tokens.old_logprobs, row.sampler_logprobs if old == "sampler" else proximal)
    assert tokens.logprobs is logprobs
    assert not tokens.old_logprobs.requires_grad
    assert torch.equal(tokens.sequences, row.samples)
    assert tokens.entropy is None
