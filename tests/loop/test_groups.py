"""whippletree/loop/groups.py"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from whippletree.loop.groups import SourceTasks, group_id, make_group, pick_source, pick_task, progress
from whippletree.types import Rollout, RolloutSpec, RolloutState, Sampling, StepRecord

SOURCE = SourceTasks(name="a", tasks=tuple((f"t{n}", f"/t/{n}") for n in range(5)), harness="mini-swe-agent")


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 60))
def test_each_source_gets_its_share_to_within_one(shares: list[int], groups: int):
    counts = Counter(pick_source(number, shares)[0] for number in range(groups))
    for index, share in enumerate(shares):
        assert abs(counts[index] - groups * share / sum(shares)) < 1 + 1e-9


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 40))
def test_turns_of_a_source_count_up_without_gaps(shares: list[int], groups: int):
    seen: dict[int, list[int]] = {}
    for number in range(groups):
        source, turn = pick_source(number, shares)
        seen.setdefault(source, []).append(turn)
    assert all(turns == list(range(len(turns))) for turns in seen.values())


def test_a_task_comes_again_only_after_all_others():
    picks = [pick_task(SOURCE, turn, 7)[0] for turn in range(10)]
    assert sorted(picks[:5]) == sorted(picks[5:]) == ["t0", "t1", "t2", "t3", "t4"]
    assert picks == [pick_task(SOURCE, turn, 7)[0] for turn in range(10)]
    assert picks != [pick_task(SOURCE, turn, 8)[0] for turn in range(10)]


def test_a_group_is_one_task_under_one_harness():
    specs = make_group(3, [SOURCE], size=4, seed=1, step=0, sampling=Sampling(), max_attempts=2)
    assert len({spec.rollout_id for spec in specs}) == 4
    assert {spec.group_id for spec in specs} == {group_id(3)}
    assert len({(spec.task_id, spec.harness) for spec in specs}) == 1


def rollout(group: int, member: int, state: RolloutState, updated: float) -> Rollout:
    spec = RolloutSpec(
        rollout_id=f"{group_id(group)}-m{member}",
        group_id=group_id(group),
        source="a",
        task_id="t",
        task_path="/t",
        harness="h",
    )
    return Rollout(spec=spec, state=state, created=0.0, updated=updated)


def test_groups_are_ready_when_all_are_terminal_and_none_is_planned():
    rollouts = [
        rollout(0, 0, "succeeded", 1.0), rollout(0, 1, "failed", 9.0),
        rollout(1, 0, "succeeded", 2.0), rollout(1, 1, "running", 2.0),
        rollout(2, 0, "succeeded", 3.0), rollout(2, 1, "succeeded", 4.0),
        rollout(3, 0, "succeeded", 0.5), rollout(3, 1, "succeeded", 0.5),
    ]  # fmt: skip
    found = progress(rollouts, [StepRecord(step=0, rollout_ids=("g00003-m0", "g00003-m1"), policy_version=1)])
    assert found.created == 4
    assert found.ready == ("g00002", "g00000")  # by completion
    assert found.open == ("g00001",)
    assert found.trained == ("g00003",)
