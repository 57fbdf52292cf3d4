"""whippletree/learner/losses/imitation.py"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from losses_parts import Token, check_against, check_float32, check_layout, of_logprobs, random_tokens, value_and_gradient

from whippletree.errors import ConfigurationError
from whippletree.learner.losses.imitation import distill_forward, distill_reverse, sft

REVERSE = partial(distill_reverse, ratio_cap=1.2, advantage_limit=0.6, reward_share=0.5)


def reverse_reference(tokens: Sequence[Token]) -> list[float]:
    losses = []
    for token in tokens:
        advantage = max(-0.6, min(0.6, token.teacher - token.frozen)) + 0.5 * token.advantage
        losses.append(-min(1.2, math.exp(token.frozen - token.old)) * advantage * token.now)
    return losses


@pytest.mark.parametrize("seed", range(3))
def test_they_equal_the_plain_reference(seed: int):
    check_against(sft, lambda tokens: [-token.now for token in tokens], random_tokens(seed))
    check_against(REVERSE, reverse_reference, random_tokens(seed))


@pytest.mark.parametrize("loss", [sft, REVERSE])
def test_float32_agrees_and_layout_does_not_matter(loss):
    check_float32(loss, random_tokens(5))
    check_layout(loss, random_tokens(6))


def test_a_teacher_that_agrees_teaches_nothing():
    tokens = random_tokens(1)
    tokens = replace(tokens, teacher_logprobs=tokens.logprobs)
    loss = partial(distill_reverse, ratio_cap=2.0, advantage_limit=10.0, reward_share=0.0)
    _, gradient = value_and_gradient(loss, tokens)
    assert gradient.tolist() == [0.0] * 24


def test_the_expected_gradient_of_reverse_distillation_is_that_of_the_kl():
    """Summed over all tokens of a small vocabulary, each with its probability as weight: -E[D·∇log π] = ∇KL(π‖π_T)."""
    logits = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64, requires_grad=True)
    teacher = torch.log_softmax(torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64), -1)
    logprobs = torch.log_softmax(logits, -1)
    kl = (logprobs.exp() * (logprobs - teacher)).sum()
    expected = torch.autograd.grad(kl, logits, retain_graph=True)[0]
    tokens = replace(of_logprobs([0.0] * 3, [0.0] * 3, [0.0] * 3), logprobs=logprobs, old_logprobs=logprobs.detach())
    output = distill_reverse(replace(tokens, teacher_logprobs=teacher), ratio_cap=2.0, advantage_limit=10.0, reward_share=0.0)
    found = torch.autograd.grad((output.per_token * logprobs.exp().detach()).sum(), logits)[0]
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-12)


def forward_tokens(teacher: torch.Tensor, student: torch.Tensor):
    count = len(teacher)
    base = of_logprobs([-1.0] * count, [-1.0] * count, [0.0] * count)
    return replace(base, weights=base.weights.to(teacher.dtype), teacher_top_logprobs=teacher, student_top_logprobs=student)


def plain_forward(teacher: Sequence[float], student: Sequence[float]) -> float:
    p, q = [math.exp(x) for x in teacher], [math.exp(x) for x in student]
    rest_p, rest_q = 1 - sum(p), 1 - sum(q)
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) + rest_p * math.log(rest_p / rest_q)


def top_logprobs(seed: int, vocabulary: int = 12, count: int = 5, top: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    teacher, student = (
        torch.log_softmax(2 * torch.randn(count, vocabulary, generator=generator, dtype=torch.float64), -1) for _ in range(2)
    )
    best = teacher.topk(top)
    return best.values, student.gather(-1, best.indices)


@pytest.mark.parametrize("seed", range(3))
def test_forward_kl_equals_the_plain_reference_with_its_gradient(seed: int):
    teacher, student = top_logprobs(seed)
    found, gradient = value_and_gradient(distill_forward, forward_tokens(teacher, student), leaf="student_top_logprobs")
    expected = [plain_forward(a, b) for a, b in zip(teacher.tolist(), student.tolist(), strict=True)]
    assert found.tolist() == pytest.approx(expected, abs=1e-10)
    assert min(found.tolist()) > 0
    for row, (a, b) in enumerate(zip(teacher.tolist(), student.tolist(), strict=True)):
        for place in range(len(b)):
            up, down = list(b), list(b)
            up[place] += 1e-6
            down[place] -= 1e-6
            assert gradient[row, place].item() == pytest.approx(
                (plain_forward(a, up) - plain_forward(a, down)) / 2e-6, abs=1e-6
            )


def test_forward_kl_in_float32_agrees_and_vanishes_where_both_agree():
    teacher, student = top_logprobs(4)
    wide = distill_forward(forward_tokens(teacher, student)).per_token
    narrow = distill_forward(forward_tokens(teacher.float(), student.float())).per_token
    assert narrow.tolist() == pytest.approx(wide.tolist(), rel=1e-4, abs=1e-5)
    same, gradient = value_and_gradient(distill_forward, forward_tokens(teacher, teacher), leaf="student_top_logprobs")
    assert same.tolist() == pytest.approx([0.0] * 5, abs=1e-12)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("teacher", "student"), [([0.0, -200.0], [-200.0, 0.0]), ([0.0, -1e4], [0.0, -1e4]), ([-90.0, -95.0], [-0.1, -9.0])]
)
def test_forward_kl_is_finite_at_the_edges(teacher: list[float], student: list[float]):
    tokens = forward_tokens(torch.tensor([teacher]), torch.tensor([student]))
    value, gradient = value_and_gradient(distill_forward, tokens, leaf="student_top_logprobs")
    assert torch.isfinite(value).all()
    assert torch.isfinite(gradient).all()


def test_rows_without_a_teacher_are_refused_with_the_column():
    tokens = of_logprobs([-1.0], [-1.0], [1.0])
    with pytest.raises(ConfigurationError, match="teacher_logprobs"):
        REVERSE(tokens)
    with pytest.raises(ConfigurationError, match="teacher_top_logprobs"):
        distill_forward(tokens)
