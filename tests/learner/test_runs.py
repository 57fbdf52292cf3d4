"""whippletree/learner/runs.py"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whippletree.learner.attention import sees
from whippletree.learner.rows import Row, build_row
from whippletree.learner.runs import Run, Runs, attention, runs_of
from whippletree.types import Sample

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=7)


def laid(sequences: list[list[int]], shared: list[int] | None = None) -> Row:
    samples = [
        Sample(
            sample_id=f"s{number}",
            rollout_id="r",
            group_id="g",
            call_ids=(),
            token_ids=np.array(ids, np.int32),
            trained=np.zeros(len(ids), np.bool_),
            logprobs=np.zeros(len(ids), np.float32),
            versions=np.zeros(len(ids), np.int32),
        )
        for number, ids in enumerate(sequences)
    ]
    return build_row(samples, {"r": 1.0}, dict.fromkeys((sample.sample_id for sample in samples), 1.0), shared=shared)


def paths(runs: Sequence[Run]) -> list[list[int]]:
    """For every token of a row in order, the indices that it sees."""
    found = []
    for run in runs:
        before = run.before.tolist()
        found += [[*before, *range(run.start, index + 1)] for index in range(run.start, run.end)]
    return found


@given(SEQUENCES)
def test_every_token_is_in_one_run_and_sees_what_the_intervals_say(sequences: list[list[int]]):
    row = laid(sequences)
    index = torch.arange(len(row.token_ids))
    allowed = sees(row, "full_attention", None)(index[:, None], index[None, :])
    assert paths(runs_of(row).runs) == [torch.nonzero(line)[:, 0].tolist() for line in allowed]


def test_samples_end_to_end_are_a_run_each():
    found = runs_of(laid([[1, 2, 3], [1, 2], [1]], [0, 0, 0])).runs
    assert [(run.start, run.end, len(run.before)) for run in found] == [(0, 3, 0), (3, 5, 0), (5, 6, 0)]


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_attention_by_runs_is_that_of_the_whole_mask(window: int, softcap: float | None):
    row = laid([[1, 2, 3, 4, 5], [1, 2, 3, 6], [1, 2, 7, 8, 9, 9, 9], [4, 4]])
    length = len(row.token_ids)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, length, 8, dtype=torch.float64) for heads in (4, 2, 2))
    found, _ = attention(torch.nn.Module(), q, k, v, None, runs=runs_of(row), sliding_window=window or None, softcap=softcap)
    index = torch.arange(length)
    config = type("Config", (), {"sliding_window": window})
    kind = "sliding_attention" if window else "full_attention"
    allowed = sees(row, kind, config)(index[:, None], index[None, :])  # type: ignore[arg-type]
    scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2) * 8**-0.5
    scores = torch.tanh(scores / softcap) * softcap if softcap else scores
    expected = torch.softmax(scores.masked_fill(~allowed, float("-inf")), -1) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(found, expected.transpose(1, 2), rtol=0, atol=1e-12)


def test_what_is_not_computed_is_refused():
    states = torch.zeros(1, 1, 2, 4)
    runs = Runs(runs=runs_of(laid([[1, 2]])).runs)
    with pytest.raises(ValueError, match="s_aux"):
        attention(torch.nn.Module(), states, states, states, None, runs=runs, s_aux=states)
    with pytest.raises(ValueError, match="dropout"):
        attention(torch.nn.Module(), states, states, states, None, runs=runs, dropout=0.1)
