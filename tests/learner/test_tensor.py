"""whippletree/learner/tensor.py, layout.py and collectives.py, on real gloo processes"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_parts import ADVANTAGES, WEIGHTS, make_branched_samples, make_samples
from ranks_parts import InDouble, RankedInDouble, many, one_process, ranks, run_ranks, same_update

from whippletree.learner.rows import Row, build_row


def batches() -> list[list[Row]]:
    """Two updates of branched and plain rows of uneven length; the second leaves a data rank with an empty one."""
    samples = make_samples()
    forest = build_row(make_branched_samples(), ADVANTAGES, WEIGHTS)
    assert forest.branched
    return [[forest, build_row(samples[2:], ADVANTAGES, WEIGHTS), build_row(samples[:1], ADVANTAGES, WEIGHTS)], [forest]]


def as_one(found: list[Any], one: Any, *, tolerance: float = 1e-9) -> None:
    for made in found:
        same_update(one, made, tolerance=tolerance)
        for a, b in zip(one.weights, made.weights, strict=True):
            torch.testing.assert_close(b, a, rtol=10 * tolerance, atol=10 * tolerance)
    for a, b in zip(one.stats, found[0].stats, strict=True):
        assert (a.rows, a.tokens, a.compared_tokens) == (b.rows, b.tokens, b.compared_tokens)
        assert b.grad_norm == pytest.approx(a.grad_norm, rel=1e-6)
        assert b.metrics == pytest.approx(a.metrics, rel=1e-6)


@pytest.mark.parametrize("sizes", [{"tensor": 2}, {"data": 2, "tensor": 2}, {"context": 2, "tensor": 2}], ids=str)
def test_sharing_layers_makes_the_update_of_one_process(small_model: Path, sizes: dict[str, int]):
    settings: dict[str, Any] = {"entropy_bonus": 0.01}
    one = one_process(small_model, batches(), settings, kind=InDouble)
    ranked = {**settings, "ranks": ranks(**sizes)}
    as_one(run_ranks(math.prod(sizes.values()), many, small_model, batches(), ranked, RankedInDouble), one)
