"""The prefill budget is shared as planning.py promises."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whippletree.engines.embedded.planning import share_budget

wanted_lists = st.lists(st.integers(1, 3000), max_size=20)
budgets = st.integers(1, 1000)


@given(wanted_lists, budgets)
def test_the_budget_is_used_up_and_nobody_gets_more_than_they_want(wanted: list[int], budget: int) -> None:
    given_out = share_budget(wanted, budget)
    assert len(given_out) == len(wanted)
    assert all(0 <= share <= want for share, want in zip(given_out, wanted, strict=True))
    assert sum(given_out) == min(budget, sum(wanted))


@given(wanted_lists.filter(bool), budgets)
def test_the_oldest_gets_half_or_all_it_wants(wanted: list[int], budget: int) -> None:
    assert share_budget(wanted, budget)[0] >= min(wanted[0], max(1, budget // 2))


def test_short_prompts_pass_a_long_one() -> None:
    assert share_budget([5000, 3000, 40, 30], 100) == [50, 0, 20, 30]


def test_a_lone_long_prompt_gets_everything() -> None:
    assert share_budget([5000], 100) == [100]
