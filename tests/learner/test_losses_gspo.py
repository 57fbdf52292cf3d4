"""whippletree/learner/losses/gspo.py"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from losses_parts import Token, check_against, check_float32, check_layout, of_logprobs, random_tokens, value_and_gradient

from whippletree.learner.losses.gspo import gspo, gspo_token

LOSSES = {
    "gspo": partial(gspo, clip_low=0.05, clip_high=0.08),
    "gspo-token": partial(gspo_token, clip_low=0.05, clip_high=0.08),
}


def sequence_ratio(tokens: Sequence[Token], number: int, *, frozen: bool) -> float:
    own = [token for token in tokens if token.sequence == number]
    return math.exp(sum((token.frozen if frozen else token.now) - token.old for token in own) / len(own))


def reference(tokens: Sequence[Token], *, by_token: bool) -> list[float]:
    losses = []
    for token in tokens:
        ratio = sequence_ratio(tokens, token.sequence, frozen=by_token)
        if by_token:
            ratio *= math.exp(token.now) / math.exp(token.frozen)
        losses.append(-min(ratio * token.advantage, max(0.95, min(1.08, ratio)) * token.advantage))
    return losses


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", range(4))
def test_it_equals_the_plain_reference(name: str, seed: int):
    check_against(LOSSES[name], partial(reference, by_token=name == "gspo-token"), random_tokens(seed))


@pytest.mark.parametrize("name", LOSSES)
def test_float32_agrees_and_layout_does_not_matter(name: str):
    check_float32(LOSSES[name], random_tokens(8))
    check_layout(LOSSES[name], random_tokens(9))


def test_the_variants_agree_where_a_sample_has_one_advantage_and_one_weight():
    tokens = random_tokens(2)
    same = replace(
        tokens,
        advantages=torch.tensor([1.0, -2.0, 0.5, -0.25]).double()[tokens.sequences],
        weights=torch.tensor([0.1, 0.2, 0.3, 0.4]).double()[tokens.sequences],
    )
    whole, single = (value_and_gradient(loss, same) for loss in LOSSES.values())
    assert whole[0].tolist() == pytest.approx(single[0].tolist(), abs=1e-12)
    assert whole[1].tolist() == pytest.approx(single[1].tolist(), abs=1e-12)


def test_the_hand_derived_gradient_of_an_open_sample():
    tokens = of_logprobs([-1.0, -2.0], [-1.02, -1.99], [1.0, 1.0])
    ratio = math.exp((0.02 - 0.01) / 2)
    for loss in LOSSES.values():
        _, gradient = value_and_gradient(loss, tokens)
        assert gradient.tolist() == pytest.approx([-ratio, -ratio], rel=1e-5)  # two tokens, each with half of 2·s


@pytest.mark.parametrize("name", LOSSES)
def test_a_sample_is_clipped_whole_or_not_at_all(name: str):
    tokens = of_logprobs([-1.0, -1.0, -1.0], [-1.9, -0.9, -1.0], [1.0, 1.0, 1.0], sequences=torch.tensor([0, 0, 4]))
    output = LOSSES[name](tokens)
    assert output.diagnostics["clipped"].tolist() == [True, True, False]
    _, gradient = value_and_gradient(LOSSES[name], tokens)
    assert gradient[:2].tolist() == [0.0, 0.0]
    assert gradient[2].item() == pytest.approx(-1.0)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("gap", [200.0, -200.0])
def test_long_drifted_samples_stay_finite(name: str, gap: float):
    tokens = of_logprobs([-1.0] * 50, [-1.0 - gap] * 50, [-1.0] * 50)
    value, gradient = value_and_gradient(LOSSES[name], tokens)
    assert torch.isfinite(value).all()
    assert torch.isfinite(gradient).all()
