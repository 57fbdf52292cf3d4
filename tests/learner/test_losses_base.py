"""whippletree/learner/losses/base.py"""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from losses_parts import random_tokens

from whippletree.learner.losses.base import RATIO_LIMIT, safe_ratio, sequence_index, sequence_mean, sequence_sum


@pytest.mark.parametrize("gap", [19.9, 20.1, 90.0, -90.0, 1e30])
def test_a_ratio_never_overflows_forward_or_backward(gap: float):
    logprobs = torch.tensor([gap], requires_grad=True)
    ratio = safe_ratio(logprobs, torch.zeros(1))
    (ratio * 0.0).sum().backward()  # what overflowed would be 0 * inf
    assert logprobs.grad is not None
    assert logprobs.grad.item() == 0.0
    assert ratio.item() == pytest.approx(math.exp(max(-RATIO_LIMIT, min(RATIO_LIMIT, gap))), rel=1e-5)


def test_beyond_the_limit_there_is_no_gradient():
    logprobs = torch.tensor([19.0, 21.0], requires_grad=True)
    safe_ratio(logprobs, torch.zeros(2)).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].item() == pytest.approx(math.exp(19), rel=1e-5)
    assert logprobs.grad[1].item() == 0.0


def test_select_keeps_every_column_and_lets_nothing_else_through():
    tokens = random_tokens(0)
    chosen = torch.arange(24) % 3 == 0
    spoilt = replace(tokens, logprobs=torch.where(chosen, tokens.logprobs, math.nan))
    found, same = spoilt.select(chosen), tokens.select(chosen)
    for column in fields(tokens):
        values = getattr(tokens, column.name)
        assert (getattr(found, column.name) is None) == (values is None)
        if values is not None:
            assert torch.equal(getattr(found, column.name), getattr(same, column.name))
            assert len(getattr(found, column.name)) == 8


def test_sums_and_means_are_of_each_sequences_own_tokens():
    index, counts = sequence_index(torch.tensor([5, -1, 5, 3, -1, 5]))
    values = torch.tensor([1.0, 10.0, 2.0, 7.0, 30.0, 6.0])
    assert sequence_sum(values, index, 3).tolist() == [40.0, 7.0, 9.0]  # of -1, 3 and 5
    assert sequence_mean(values, index, counts)[index].tolist() == [3.0, 20.0, 3.0, 7.0, 20.0, 3.0]
