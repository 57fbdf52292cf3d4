"""whippletree/learner/loss.py"""

from __future__ import annotations

import pytest
import torch

from whippletree.learner.loss import ppo_clip


def gradient(logprobs: list[float], sampler: list[float], advantages: list[float], weights: list[float]) -> list[float]:
    leaf = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    loss, _ = ppo_clip(
        leaf, torch.tensor(sampler).double(), torch.tensor(advantages).double(), torch.tensor(weights).double(),
        clip_low=0.2, clip_high=0.3,
    )  # fmt: skip
    loss.backward()
    assert leaf.grad is not None
    return leaf.grad.tolist()


def test_ratio_one_gives_the_plain_policy_gradient():
    found = gradient([-1.0, -2.0, -0.5], [-1.0, -2.0, -0.5], [1.0, -2.0, 0.0], [0.5, 0.25, 0.25])
    assert found == pytest.approx([-0.5, 0.5, 0.0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "closed"),
    [(1.29, 1.0, False), (1.31, 1.0, True), (1.31, -1.0, False), (0.81, -1.0, False), (0.79, -1.0, True), (0.79, 1.0, False)],
)
def test_the_clip_closes_one_side_only(ratio: float, advantage: float, closed: bool):
    logprob = torch.log(torch.tensor(ratio, dtype=torch.float64)).item()
    found = gradient([logprob], [0.0], [advantage], [1.0])[0]
    assert (found == 0.0) == closed
    if not closed:
        assert found == pytest.approx(-ratio * advantage)


def test_active_clips_are_reported():
    logprobs = torch.log(torch.tensor([1.5, 1.0, 0.5]))
    zeros = torch.zeros(3)
    _, clipped = ppo_clip(logprobs, zeros, torch.tensor([1.0, 1.0, -1.0]), torch.ones(3), clip_low=0.2, clip_high=0.2)
    assert clipped.tolist() == [True, False, True]


def test_weights_alone_decide_the_average():
    a = gradient([-1.0, -1.0], [-1.0, -1.0], [1.0, 1.0], [0.75, 0.25])
    assert a == pytest.approx([-0.75, -0.25])
