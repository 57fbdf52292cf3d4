"""whippletree/learner/ranks.py"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_parts import make_sample
from ranks_parts import run_ranks

from whippletree.errors import AlignmentError, ConfigurationError, NonFiniteError, ProcessError
from whippletree.learner.config import RanksConfig
from whippletree.learner.ranks import deal, join, row_cost
from whippletree.learner.rows import Row, build_row


def rows_of(lengths: list[int]) -> list[Row]:
    draw = np.random.default_rng(3)
    samples = [make_sample(number, length, draw) for number, length in enumerate(lengths)]
    return [build_row([one], {one.rollout_id: 1.0}, {one.sample_id: 1.0}) for one in samples]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(2, 40), max_size=12), st.integers(1, 5))
def test_every_row_is_dealt_once_and_ranks_have_as_many(lengths: list[int], ranks: int):
    dealt = deal(rows_of(lengths), ranks)
    assert len(dealt) == ranks
    assert len({len(rows) for rows in dealt}) == 1
    names = [name for rows in dealt for row in rows for name in row.sample_ids]
    assert sorted(names) == sorted(f"s{number}" for number in range(len(lengths)))
    empty = [row for rows in dealt for row in rows if not row.sample_ids]
    assert len(empty) == -len(lengths) % ranks
    assert all(len(row.targets) == 0 for row in empty)


def test_ranks_get_even_work():
    dealt = deal(rows_of([40, 4, 4, 40]), 2)
    assert [sorted(len(row.token_ids) for row in rows) for rows in dealt] == [[4, 40], [4, 40]]


def test_a_rows_cost_is_that_of_its_path():
    from whippletree.batching.config import CostConfig

    (row,) = rows_of([9])
    assert row_cost(row, CostConfig(linear=2.0, quadratic=3.0)) == 2 * 9 + 3 * 81


def failing(rank: int) -> list[str]:
    """What each of three ranks is told when two of them fail, when none does, and when they have uneven rows."""
    ranks = join(RanksConfig(data=3, timeout_seconds=30.0))
    said = []

    def check() -> int:
        if rank:
            raise NonFiniteError(f"loss nan on rank {rank}", "look")
        return 5

    try:
        ranks.agreed(check)
    except NonFiniteError as error:
        said.append(str(error))
    said.append(str(ranks.agreed(lambda: rank)))
    try:
        ranks.require_same(1 + rank // 2)
    except AlignmentError as error:
        said.append(str(error))
    return said


def test_an_error_of_one_rank_is_every_ranks():
    found = run_ranks(3, failing)
    for rank, said in enumerate(found):
        assert said[0] == "loss nan on rank 1 (look)"
        assert said[1] == str(rank)
        assert said[2].startswith("ranks have [1, 1, 2] rows")


def silent(rank: int) -> str:
    """Rank 1 says nothing for longer than the timeout."""
    ranks = join(RanksConfig(data=2, timeout_seconds=1.0))
    if rank:
        torch.distributed.barrier()  # of the test's own group, which waits longer
        return ""
    try:
        with ranks.guarded():
            ranks.gather(1)
    except ProcessError as error:
        torch.distributed.barrier()
        return str(error)
    return "no error"


def test_a_silent_rank_is_an_error_after_the_timeout():
    said, _ = run_ranks(2, silent)
    assert "waited longer than learner.ranks.timeout_seconds = 1" in said


def test_errors_that_are_none_of_the_ranks_pass():
    assert run_ranks(2, passing) == ["mat1 and mat2 cannot be multiplied"] * 2


def passing(rank: int) -> str:
    ranks = join(RanksConfig(data=2))
    try:
        with ranks.guarded():
            raise RuntimeError("mat1 and mat2 cannot be multiplied")
    except RuntimeError as error:
        return str(error)


def test_a_process_alone_is_told_how_to_start():
    with pytest.raises(ConfigurationError, match=r"torch\.distributed\.run --nproc-per-node 4"):
        join(RanksConfig(data=2, context=2))


def counted(rank: int) -> str:
    try:
        join(RanksConfig(data=3))
    except ConfigurationError as error:
        return str(error)
    return ""


def test_another_number_of_processes_is_refused():
    assert all("3 x 1 x 1 processes, and 2 were started" in said for said in run_ranks(2, counted))
