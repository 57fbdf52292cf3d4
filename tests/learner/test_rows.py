"""whippletree/learner/rows.py"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whippletree.errors import AlignmentError
from whippletree.learner.rows import Row, build_row, by_sample, lay_column
from whippletree.types import Sample

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=8), min_size=1, max_size=7)


def made(number: int, ids: list[int], trained: list[bool]) -> Sample:
    length = len(ids)
    return Sample(
        sample_id=f"s{number}",
        rollout_id=f"r{number}",
        group_id="g",
        call_ids=(),
        token_ids=np.array(ids, np.int32),
        trained=np.array(trained),
        logprobs=-np.arange(length).astype(np.float32) - 100 * number,
        versions=np.full(length, number, np.int32),
    )


def laid(samples: list[Sample], shared: list[int] | None = None) -> Row:
    advantages = {sample.rollout_id: float(index) for index, sample in enumerate(samples)}
    weights = {sample.sample_id: 0.5 + index for index, sample in enumerate(samples)}
    return build_row(samples, advantages, weights, shared=shared)


def seen_by(row: Row, index: int) -> list[int]:
    return [j for j in range(index + 1) if row.exits[j] > index]


def path_to(row: Row, index: int) -> list[int]:
    path = [index]
    while row.parents[path[-1]] >= 0:
        path.append(int(row.parents[path[-1]]))
    return path[::-1]


@given(SEQUENCES, st.integers(0, 2**20))
def test_every_token_sees_its_own_path_and_every_trained_token_is_one_target(sequences: list[list[int]], bits: int):
    samples = []
    for number, ids in enumerate(sequences):
        samples.append(made(number, ids, [i > 0 and bool(bits >> (i + 5 * number) & 1) for i in range(len(ids))]))
    row = laid(samples)
    for index in range(len(row.token_ids)):
        assert seen_by(row, index) == path_to(row, index)
        assert int(row.positions[index]) == len(path_to(row, index)) - 1
    found: dict[str, list[tuple[float, int, list[int]]]] = {sample.sample_id: [] for sample in samples}
    for n, index in enumerate(row.targets.tolist()):
        tokens = row.token_ids[path_to(row, index)].tolist()
        found[row.sample_ids[row.samples[n]]].append((float(row.sampler_logprobs[n]), int(row.versions[n]), tokens))
    for number, sample in enumerate(samples):
        at = np.flatnonzero(sample.trained)
        ids = sample.token_ids.tolist()
        assert found[sample.sample_id] == [(float(sample.logprobs[i]), number, ids[: i + 1]) for i in at]
    distinct = {tuple(ids[: end + 1]) for ids in sequences for end in range(len(ids))}
    assert len(row.token_ids) == len(distinct)


def test_the_drawing_of_the_module_is_true():
    row = laid([made(0, [1, 2, 3, 4], [False] * 4), made(1, [1, 2, 9], [False, False, True]), made(2, [5, 6], [False, True])])
    assert row.token_ids.tolist() == [1, 2, 3, 4, 9, 5, 6]
    assert row.positions.tolist() == [0, 1, 2, 3, 2, 0, 1]
    assert row.exits.tolist() == [5, 5, 4, 4, 5, 7, 7]
    assert row.parents.tolist() == [-1, 0, 1, 2, 1, -1, 5]
    assert (row.targets.tolist(), row.samples.tolist(), row.branched) == ([4, 6], [1, 2], True)


def test_a_target_has_the_columns_of_its_own_sample_also_where_two_trained_the_same_token():
    row = laid([made(0, [1, 2, 3], [False, True, True]), made(1, [1, 2, 4], [False, True, False])])
    assert row.targets.tolist() == [1, 2, 1]
    assert row.sampler_logprobs.tolist() == [-1.0, -2.0, -101.0]
    assert row.advantages.tolist() == [0.0, 0.0, 1.0]
    assert row.weights.tolist() == [0.5, 0.5, 1.5]
    assert row.versions.tolist() == [0, 0, 1]


def test_samples_are_laid_end_to_end_where_nothing_is_to_be_shared():
    row = laid([made(0, [1, 2, 3], [False, False, True]), made(1, [1, 2, 4], [False, True, False])], [0, 0])
    assert row.token_ids.tolist() == [1, 2, 3, 1, 2, 4]
    assert row.positions.tolist() == [0, 1, 2, 0, 1, 2]
    assert row.exits.tolist() == [3, 3, 3, 6, 6, 6]
    assert not row.branched
    assert torch.equal(row.targets, torch.tensor([2, 4]))


def test_a_row_of_no_samples_is_one_token_without_a_target():
    row = build_row([], {}, {}, shared=())
    assert (row.token_ids.tolist(), row.positions.tolist(), row.exits.tolist(), row.parents.tolist()) == ([0], [0], [1], [-1])
    assert len(row.targets) == len(row.weights) == len(row.samples) == 0
    assert (row.sample_ids, row.branched, by_sample(row, row.weights)) == ((), False, {})
    assert torch.equal(build_row([], {}, {}).token_ids, row.token_ids)


@given(SEQUENCES, st.integers(0, 2**20))
def test_a_column_taken_apart_by_sample_and_laid_again_is_the_same(sequences: list[list[int]], bits: int):
    samples = [
        made(number, ids, [i > 0 and bool(bits >> (i + 5 * number) & 1) for i in range(len(ids))])
        for number, ids in enumerate(sequences)
    ]
    row = laid(samples)
    apart = by_sample(row, row.sampler_logprobs)
    assert {name: values.tolist() for name, values in apart.items()} == {
        s.sample_id: s.logprobs[s.trained].tolist() for s in samples
    }
    assert torch.equal(lay_column(row, apart), row.sampler_logprobs)


def test_some_targets_are_selected_with_all_their_columns():
    row = laid([made(0, [1, 2, 3], [False, True, True]), made(1, [1, 2, 4], [False, True, False])])
    row = replace(row, returns=torch.tensor([1.0, 2.0, 3.0]), teacher_top_ids=torch.tensor([[1, 2], [3, 4], [5, 6]]))
    found = row.select(torch.tensor([True, False, True]))
    assert (found.targets.tolist(), found.samples.tolist(), found.sampler_logprobs.tolist()) == ([1, 1], [0, 1], [-1.0, -101.0])
    assert found.returns is not None and found.teacher_top_ids is not None
    assert (found.returns.tolist(), found.teacher_top_ids.tolist()) == ([1.0, 3.0], [[1, 2], [5, 6]])
    assert found.token_ids is row.token_ids and found.old_values is None


def test_what_cannot_be_laid_is_refused():
    with pytest.raises(AlignmentError, match="s0 trains its first token"):
        laid([made(0, [1, 2], [True, False])])
    with pytest.raises(AlignmentError, match="s1 shares 3 tokens with one of 2"):
        laid([made(0, [1, 2], [False, True]), made(1, [1, 2, 3, 4], [False] * 3 + [True])], [0, 3])
    with pytest.raises(AlignmentError, match="s1 does not begin with the 2 tokens that it is said to share"):
        laid([made(0, [1, 2, 5], [False, True, True]), made(1, [1, 9, 3], [False] * 2 + [True])], [0, 2])
