"""whippletree/learner/losses/policy.py"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from losses_parts import Token, check_against, check_float32, check_layout, of_logprobs, random_tokens, value_and_gradient

from whippletree.learner.losses.policy import cispo, dual_clip, masked_importance, ppo_clip, reinforce

PPO = partial(ppo_clip, clip_low=0.2, clip_high=0.3)
DUAL = partial(dual_clip, clip_low=0.2, clip_high=0.3, bound=1.5)
CISPO = partial(cispo, clip_low=0.4, clip_high=0.25)
MASKED = partial(masked_importance, positive_low=0.7, positive_high=1.6, negative_low=0.8, negative_high=1.2)


def clipped(ratio: float, low: float, high: float) -> float:
    return max(1 - low, min(1 + high, ratio))


def ppo_of(token: Token) -> float:
    ratio = math.exp(token.now - token.old)
    return -min(ratio * token.advantage, clipped(ratio, 0.2, 0.3) * token.advantage)


def dual_of(token: Token) -> float:
    return min(ppo_of(token), -1.5 * token.advantage) if token.advantage < 0 else ppo_of(token)


def cispo_of(token: Token) -> float:
    return -clipped(math.exp(token.frozen - token.old), 0.4, 0.25) * token.advantage * token.now


def masked_of(token: Token) -> float:
    ratio = math.exp(token.frozen - token.sampler)
    low, high = (0.7, 1.6) if token.advantage >= 0 else (0.8, 1.2)
    return -ratio * token.advantage * token.now if low <= ratio <= high else 0.0


CASES = {
    "ppo": (PPO, ppo_of),
    "dual-clip": (DUAL, dual_of),
    "cispo": (CISPO, cispo_of),
    "masked-importance": (MASKED, masked_of),
    "reinforce": (reinforce, lambda token: -token.now * token.advantage),
}
by_loss = pytest.mark.parametrize(("loss", "of_token"), CASES.values(), ids=CASES)


@by_loss
@pytest.mark.parametrize("old", ["sampler", "proximal"])
@pytest.mark.parametrize("seed", range(3))
def test_it_equals_the_plain_reference(loss, of_token, old: str, seed: int):
    def reference(tokens: Sequence[Token]) -> list[float]:
        return [of_token(token) for token in tokens]

    check_against(loss, reference, random_tokens(seed, old=old))


@by_loss
def test_float32_agrees_and_layout_does_not_matter(loss, of_token):
    check_float32(loss, random_tokens(5))
    check_layout(loss, random_tokens(6))


@by_loss
def test_ratio_one_gives_the_plain_policy_gradient(loss, of_token):
    tokens = random_tokens(7)
    tokens = replace(tokens, sampler_logprobs=tokens.logprobs, old_logprobs=tokens.logprobs)
    _, gradient = value_and_gradient(loss, tokens)
    assert gradient.tolist() == pytest.approx((-tokens.weights * tokens.advantages).tolist(), abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "closed"),
    [(1.29, 1.0, False), (1.31, 1.0, True), (1.31, -1.0, False), (0.81, -1.0, False), (0.79, -1.0, True), (0.79, 1.0, False)],
)
def test_the_clip_closes_one_side_only(ratio: float, advantage: float, closed: bool):
    _, gradient = value_and_gradient(PPO, of_logprobs([math.log(ratio)], [0.0], [advantage]))
    assert (gradient.item() == 0.0) == closed
    if not closed:
        assert gradient.item() == pytest.approx(-ratio * advantage, rel=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "closed"), [(1.4, -1.0, False), (1.6, -1.0, True), (1.2, 1.0, False), (9.0, 1.0, True)]
)
def test_dual_clip_bounds_negative_advantages_too(ratio: float, advantage: float, closed: bool):
    value, gradient = value_and_gradient(DUAL, of_logprobs([math.log(ratio)], [0.0], [advantage]))
    assert (gradient.item() == 0.0) == closed
    assert value.item() <= 1.5 * abs(advantage)


@pytest.mark.parametrize(
    ("ratio", "advantage", "kept"),
    [(0.69, 1.0, False), (0.71, 1.0, True), (1.59, 1.0, True), (1.61, 1.0, False),
     (0.79, -1.0, False), (0.81, -1.0, True), (1.19, -1.0, True), (1.21, -1.0, False)],
)  # fmt: skip
def test_each_of_the_four_bounds_masks(ratio: float, advantage: float, kept: bool):
    value, gradient = value_and_gradient(MASKED, of_logprobs([math.log(ratio) - 1.0], [-1.0], [advantage]))
    assert (gradient.item() != 0.0) == kept
    assert (value.item() != 0.0) == kept
    if kept:
        assert gradient.item() == pytest.approx(-ratio * advantage, rel=1e-5)


def test_masked_importance_takes_its_ratio_to_the_sampler_whatever_the_old_logprobs_are():
    tokens = random_tokens(3)
    other = replace(tokens, old_logprobs=tokens.old_logprobs + 9.0, proximal_logprobs=tokens.proximal_logprobs - 9.0)
    assert torch.equal(MASKED(tokens).per_token, MASKED(other).per_token)


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    _, gradient = value_and_gradient(CISPO, of_logprobs([0.0, 0.0], [-3.0, 3.0], [2.0, -2.0]))
    assert gradient.tolist() == pytest.approx([-2.0 * 1.25, 2.0 * 0.6])


@by_loss
@pytest.mark.parametrize("gap", [30.0, -30.0, 99.0, -99.0, 1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_huge_log_ratios_stay_finite_forward_and_backward(loss, of_token, gap: float, advantage: float):
    value, gradient = value_and_gradient(loss, of_logprobs([-1.0], [-1.0 - gap], [advantage]))
    assert torch.isfinite(value).all()
    assert torch.isfinite(gradient).all()


def test_active_clips_and_ratios_are_reported():
    tokens = of_logprobs([math.log(1.5), 0.0, math.log(0.5)], [0.0, 0.0, 0.0], [1.0, 1.0, -1.0])
    found = ppo_clip(tokens, clip_low=0.2, clip_high=0.2).diagnostics
    assert found["clipped"].tolist() == [True, False, True]
    assert found["ratio"].tolist() == pytest.approx([1.5, 1.0, 0.5])
    assert MASKED(tokens).diagnostics["clipped"].tolist() == [False, False, True]
    assert CISPO(tokens).diagnostics["clipped"].tolist() == [True, False, True]
