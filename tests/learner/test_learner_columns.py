"""whippletree/learner/columns.py"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from learner_parts import ADVANTAGES, WEIGHTS, make_samples

from whippletree.errors import NonFiniteError
from whippletree.learner.columns import given, make_tokens, refuse_non_finite, spread, token_names, weighted
from whippletree.learner.model import SHARED
from whippletree.learner.rows import build_row


def test_only_weighted_targets_are_selected():
    row = build_row(make_samples(), ADVANTAGES, {**WEIGHTS, "s1": 0.0})
    found = weighted(row)
    assert set(row.segments[row.targets].tolist()) == {0, 1, 2, 3}
    assert set(found.segments[found.targets].tolist()) == {0, 2, 3}
    assert torch.equal(weighted(found).targets, found.targets)


def test_what_stands_elsewhere_is_never_seen():
    row = build_row(make_samples(), ADVANTAGES, WEIGHTS)
    spoilt = replace(
        row,
        **{
            name: torch.where(row.targets, getattr(row, name), math.nan)
            for name in ("sampler_logprobs", "advantages", "weights")
        },
    )
    clean, found = given(row), given(spoilt)
    assert clean.keys() == found.keys() == {"sampler_logprobs", "advantages", "weights"}
    assert all(torch.equal(clean[name], found[name]) for name in clean)


def test_values_spread_to_a_column_come_back():
    row = build_row(make_samples(), ADVANTAGES, WEIGHTS)
    count = int(row.targets.sum())
    for values in (torch.rand(count), torch.randint(0, 9, (count, 3))):
        column = spread(row, values)
        assert column.shape[0] == len(row.targets)
        assert torch.equal(column[row.targets], values)
        assert column[~row.targets].abs().sum() == 0


def test_tokens_that_are_not_finite_are_named_a_few_of_them():
    row = build_row(make_samples(), ADVANTAGES, WEIGHTS)
    places = torch.nonzero(row.targets)[:, 0]
    bad = torch.zeros(len(places), dtype=torch.bool)
    bad[[0, 3, 5, 6, 7]] = True
    names = [f"token {row.positions[places[n]]} of sample s{row.segments[places[n]]}" for n in (0, 3, 5)]
    assert token_names(row, bad) == ", ".join(names) + " and 2 more"
    values = torch.where(bad, math.inf, 0.0)
    with pytest.raises(NonFiniteError, match="loss inf at token") as caught:
        refuse_non_finite(row, {"loss": values})
    assert names[2] in caught.value.cause
    wide = torch.zeros(len(places), 4)
    wide[1, 2] = math.nan
    with pytest.raises(
        NonFiniteError, match=f"top nan at token {row.positions[places[1]]} of sample s{row.segments[places[1]]} "
    ):
        refuse_non_finite(row, {"top": wide})
    shared = replace(row, segments=torch.full_like(row.segments, SHARED))
    assert token_names(shared, bad).startswith(f"token {row.positions[places[0]]} of sample s0, s1, s2, s3,")


@pytest.mark.parametrize("old", ["sampler", "learner"])
@pytest.mark.parametrize("brought", [True, False])
def test_the_ratio_is_taken_to_the_policy_that_is_asked_for(old: str, brought: bool):
    row = build_row(make_samples(), ADVANTAGES, WEIGHTS)
    if brought:
        row = replace(row, proximal_logprobs=torch.full((len(row.targets),), -9.0))
    logprobs = torch.rand(int(row.targets.sum()), requires_grad=True)
    tokens = make_tokens(row, given(row), {"logprobs": logprobs, "entropy": None}, old)
    proximal = torch.full_like(logprobs, -9.0) if brought else logprobs.detach()
    assert torch.equal(tokens.proximal_logprobs, proximal)
    assert torch.equal(tokens.old_logprobs, row.sampler_logprobs[row.targets] if old == "sampler" else proximal)
    assert tokens.logprobs is logprobs
    assert not tokens.old_logprobs.requires_grad
    assert torch.equal(tokens.sequences, row.segments[row.targets])
    assert tokens.entropy is None
