"""whippletree/learner/losses/regularisers.py"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from losses_parts import (
    Token,
    check_against,
    check_float32,
    check_layout,
    of_logprobs,
    plain,
    random_tokens,
    value_and_gradient,
)

from whippletree.errors import ConfigurationError
from whippletree.learner.losses.base import LossOutput, Tokens
from whippletree.learner.losses.policy import reinforce
from whippletree.learner.losses.regularisers import KL_LIMIT, entropy_bonus, kl_estimate, kl_in_reward, kl_loss, value_loss

ESTIMATORS = ("k1", "k2", "k3")


def estimate(estimator: str, logprob: float, reference: float) -> float:
    x = reference - logprob
    return {"k1": -x, "k2": x * x / 2, "k3": math.exp(x) - 1 - x}[estimator]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_equals_the_plain_reference(estimator: str):
    loss = partial(kl_loss, estimator=estimator)
    for seed in range(3):
        check_against(
            loss, lambda tokens: [estimate(estimator, token.now, token.reference) for token in tokens], random_tokens(seed)
        )
    check_float32(loss, random_tokens(5))
    check_layout(loss, random_tokens(6))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("gap", [9.9, 50.0, 100.0, 1e4, -50.0, -1e4])
def test_kl_is_finite_in_float32_and_pulls_towards_the_reference(estimator: str, gap: float):
    """`gap` is log π_ref - log π: where it is positive, the policy should become likelier, and k1 alone does not care."""
    logprobs = torch.tensor([-1.0 - max(0.0, gap)], requires_grad=True)
    found = kl_estimate(logprobs, torch.tensor([-1.0 + min(0.0, gap)]), estimator)  # type: ignore[arg-type]
    found.sum().backward()
    assert logprobs.grad is not None
    assert torch.isfinite(found).all()
    assert torch.isfinite(logprobs.grad).all()
    if estimator != "k1":
        assert found.item() > 0
        assert logprobs.grad.item() * gap < 0


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_tangent_joins_without_a_step(estimator: str):
    for side in (1.0, -1.0):
        values = []
        for gap in (KL_LIMIT - 1e-9, KL_LIMIT + 1e-9):
            leaf = torch.zeros(1, dtype=torch.float64, requires_grad=True)
            found = kl_estimate(leaf, torch.tensor([side * gap], dtype=torch.float64), estimator)  # type: ignore[arg-type]
            found.sum().backward()
            assert leaf.grad is not None
            values.append((found.item(), leaf.grad.item()))
        assert values[0] == pytest.approx(values[1], rel=1e-6)


def test_estimators_vanish_where_both_agree_and_are_never_negative():
    tokens = random_tokens(4)
    for estimator in ESTIMATORS:
        same = replace(tokens, reference_logprobs=tokens.logprobs)
        assert kl_loss(same, estimator=estimator).per_token.tolist() == [0.0] * 24  # type: ignore[arg-type]
    for estimator in ("k2", "k3"):
        assert min(kl_loss(tokens, estimator=estimator).per_token.tolist()) >= 0  # type: ignore[arg-type]


def test_k2_in_the_loss_has_the_gradient_of_the_kl_and_k1_has_none():
    """Exactly, by summing over a small vocabulary with the policy's probabilities as weights."""
    logits = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64), -1)
    logprobs = torch.log_softmax(logits, -1)
    share = logprobs.exp().detach()

    def slope(value: torch.Tensor) -> list[float]:
        return torch.autograd.grad(value, logits, retain_graph=True)[0].tolist()

    truth = slope((logprobs.exp() * (logprobs - reference)).sum())
    assert slope((share * kl_estimate(logprobs, reference, "k2")).sum()) == pytest.approx(truth, abs=1e-12)
    assert slope((share * kl_estimate(logprobs, reference, "k1")).sum()) == pytest.approx([0.0] * 3, abs=1e-12)
    assert slope((share * kl_estimate(logprobs, reference, "k3")).sum()) != pytest.approx(truth, abs=1e-3)


def rewarded(tokens: Tokens, *, estimator: str = "k3") -> LossOutput:
    changed, _ = kl_in_reward(tokens, estimator=estimator, coefficient=0.3)  # type: ignore[arg-type]
    return reinforce(changed)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_in_the_reward_equals_the_plain_reference(estimator: str):
    def reference(tokens: Sequence[Token]) -> list[float]:
        losses = []
        for number, token in enumerate(tokens):
            later = [other for other in tokens[number:] if other.sequence == token.sequence]
            penalty = sum(estimate(estimator, other.proximal, other.reference) for other in later)
            losses.append(-(token.advantage - 0.3 * penalty) * token.now)
        return losses

    for seed in range(3):
        check_against(partial(rewarded, estimator=estimator), reference, random_tokens(seed))
    check_float32(partial(rewarded, estimator=estimator), random_tokens(4))


def test_kl_in_the_reward_reaches_only_its_own_sample_and_what_came_before():
    tokens = random_tokens(0)
    assert tokens.reference_logprobs is not None
    place = 9
    other = tokens.reference_logprobs.clone()
    other[place] -= 1.0
    changed = rewarded(replace(tokens, reference_logprobs=other)).per_token != rewarded(tokens).per_token
    expected = [
        token.sequence == plain(tokens)[place].sequence and number <= place for number, token in enumerate(plain(tokens))
    ]
    assert changed.tolist() == expected


def test_entropy_is_maximised():
    tokens = random_tokens(0)
    assert tokens.entropy is not None
    value, gradient = value_and_gradient(entropy_bonus, tokens, leaf="entropy")
    assert torch.equal(value, -tokens.entropy)
    assert torch.equal(gradient, -tokens.weights)
    assert torch.equal(entropy_bonus(tokens).diagnostics["entropy"], tokens.entropy)


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_the_value_loss_equals_the_plain_reference(clip: float):
    tokens = random_tokens(3)
    assert tokens.values is not None and tokens.old_values is not None and tokens.returns is not None

    def of_token(value: float, old: float, target: float) -> float:
        held = max(old - clip, min(old + clip, value))
        return 0.5 * (max((value - target) ** 2, (held - target) ** 2) if clip else (value - target) ** 2)

    found, gradient = value_and_gradient(partial(value_loss, clip=clip), tokens, leaf="values")
    columns = list(zip(tokens.values.tolist(), tokens.old_values.tolist(), tokens.returns.tolist(), strict=True))
    assert found.tolist() == pytest.approx([of_token(*row) for row in columns], abs=1e-12)
    for number, (value, old, target) in enumerate(columns):
        slope = (of_token(value + 1e-6, old, target) - of_token(value - 1e-6, old, target)) / 2e-6
        assert gradient[number].item() == pytest.approx(tokens.weights[number].item() * slope, abs=1e-6)


def test_a_clipped_value_has_no_gradient_where_it_moved_past_the_clip_and_is_better():
    tokens = of_logprobs(
        [-1.0, -1.0], [-1.0, -1.0], [0.0, 0.0],
        values=torch.tensor([0.9, 0.9]), old_values=torch.tensor([0.0, 0.8]), returns=torch.tensor([1.0, 1.0]),
    )  # fmt: skip
    loss = partial(value_loss, clip=0.2)
    _, gradient = value_and_gradient(loss, tokens, leaf="values")
    assert gradient.tolist() == pytest.approx([0.0, -0.1])
    assert loss(tokens).diagnostics["value_clipped"].tolist() == [True, False]


def test_missing_columns_are_named():
    tokens = of_logprobs([-1.0], [-1.0], [1.0])
    for loss, column in (
        (partial(kl_loss, estimator="k3"), "reference_logprobs"),
        (entropy_bonus, "entropy"),
        (partial(value_loss, clip=0.2), "values"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=column):
            loss(tokens)
