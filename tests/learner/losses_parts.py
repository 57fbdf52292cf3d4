"""Random tokens in float64, and a check of a loss against a plain reference: values, and gradients by finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import pytest
import torch

from whippletree.learner.losses.base import LossOutput, Tokens

STEP = 1e-6


@dataclass
class Token:
    """One token in plain floats. `now` is the logprob that the gradient is taken of, `frozen` the same number held still."""

    now: float
    frozen: float
    sampler: float
    proximal: float
    old: float
    advantage: float
    reference: float
    teacher: float
    sequence: int


Reference = Callable[[Sequence[Token]], list[float]]
Loss = Callable[[Tokens], LossOutput]


def random_tokens(seed: int = 0, *, count: int = 24, samples: int = 4, spread: float = 0.4, old: str = "sampler") -> Tokens:
    """Tokens of a few samples of uneven length, one behind the other; every column differs from every other."""
    generator = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> torch.Tensor:
        return scale * torch.randn(count, generator=generator, dtype=torch.float64)

    logprobs = -2.0 * torch.rand(count, generator=generator, dtype=torch.float64) - 0.1
    sampler, proximal = logprobs + noise(spread), logprobs + noise(spread / 2)
    cuts = torch.randperm(count - 1, generator=generator)[: samples - 1].sort().values + 1
    sequences = (torch.arange(count)[:, None] >= cuts[None, :]).sum(-1)
    return Tokens(
        logprobs=logprobs,
        sampler_logprobs=sampler,
        proximal_logprobs=proximal,
        old_logprobs=sampler if old == "sampler" else proximal,
        advantages=noise(1.0),
        weights=0.01 + torch.rand(count, generator=generator, dtype=torch.float64),
        sequences=sequences,
        entropy=torch.rand(count, generator=generator, dtype=torch.float64) * 3,
        reference_logprobs=logprobs + noise(0.5),
        teacher_logprobs=logprobs + noise(0.5),
        values=noise(1.0),
        old_values=noise(1.0),
        returns=noise(1.0),
    )


def of_logprobs(logprobs: Sequence[float], old: Sequence[float], advantages: Sequence[float], **columns: object) -> Tokens:
    """Tokens of one sample with these numbers, weight 1 each, in float32."""
    values = torch.tensor(list(old), dtype=torch.float32)
    count = len(logprobs)
    found = Tokens(
        logprobs=torch.tensor(list(logprobs), dtype=torch.float32),
        sampler_logprobs=values,
        proximal_logprobs=values,
        old_logprobs=values,
        advantages=torch.tensor(list(advantages), dtype=torch.float32),
        weights=torch.ones(count),
        sequences=torch.zeros(count, dtype=torch.long),
    )
    return replace(found, **columns)  # type: ignore[arg-type]


def in_float32(tokens: Tokens) -> Tokens:
    columns = {column.name: getattr(tokens, column.name) for column in fields(tokens)}
    return Tokens(**{n: v if v is None or v.dtype == torch.long else v.float() for n, v in columns.items()})


def value_and_gradient(loss: Loss, tokens: Tokens, *, leaf: str = "logprobs") -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each token, and the gradient of the weighted sum by the leaf column."""
    column = getattr(tokens, leaf).clone().requires_grad_(True)
    per_token = loss(replace(tokens, **{leaf: column})).per_token
    (per_token * tokens.weights).sum().backward()
    assert column.grad is not None
    return per_token.detach(), column.grad


def plain(tokens: Tokens) -> list[Token]:
    assert tokens.reference_logprobs is not None and tokens.teacher_logprobs is not None
    columns = (
        tokens.logprobs, tokens.logprobs, tokens.sampler_logprobs, tokens.proximal_logprobs, tokens.old_logprobs,
        tokens.advantages, tokens.reference_logprobs, tokens.teacher_logprobs, tokens.sequences,
    )  # fmt: skip
    return [Token(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def check_against(loss: Loss, reference: Reference, tokens: Tokens) -> None:
    """Value per token to 1e-12, gradient by central differences of the reference to 1e-6."""
    found, gradient = value_and_gradient(loss, tokens)
    assert found.tolist() == pytest.approx(reference(plain(tokens)), abs=1e-12)
    weights = tokens.weights.tolist()
    slopes = []
    for number in range(len(weights)):
        sides = []
        for step in (STEP, -STEP):
            moved = plain(tokens)
            moved[number].now += step
            sides.append(sum(w * value for w, value in zip(weights, reference(moved), strict=True)))
        slopes.append((sides[0] - sides[1]) / (2 * STEP))
    assert gradient.tolist() == pytest.approx(slopes, abs=1e-6)


def check_layout(loss: Loss, tokens: Tokens) -> None:
    """A sample's losses and gradients do not depend on what lies beside it, nor on its number."""
    values, gradient = value_and_gradient(loss, tokens)
    for number in tokens.sequences.unique().tolist():
        own = tokens.sequences == number
        alone = replace(tokens.select(own), sequences=torch.full((int(own.sum()),), 7))
        found, slope = value_and_gradient(loss, alone)
        assert found.tolist() == pytest.approx(values[own].tolist(), abs=1e-12)
        assert slope.tolist() == pytest.approx(gradient[own].tolist(), abs=1e-12)
    mixed = torch.randperm(len(tokens.logprobs), generator=torch.Generator().manual_seed(1))
    found, slope = value_and_gradient(loss, tokens.select(mixed))
    assert found.tolist() == pytest.approx(values[mixed].tolist(), abs=1e-12)
    assert slope.tolist() == pytest.approx(gradient[mixed].tolist(), abs=1e-12)


def check_float32(loss: Loss, tokens: Tokens) -> None:
    values, gradient = value_and_gradient(loss, tokens)
    found, slope = value_and_gradient(loss, in_float32(tokens))
    assert found.tolist() == pytest.approx(values.tolist(), rel=1e-4, abs=1e-5)
    assert slope.tolist() == pytest.approx(gradient.tolist(), rel=1e-4, abs=1e-5)
