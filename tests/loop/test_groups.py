"""whippletree/loop/groups.py"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whippletree.loop.groups import SourceTasks, capacity, group_id, make_group, progress
from whippletree.types import Rollout, RolloutSpec, RolloutState, Sampling, StepRecord

SOURCE = SourceTasks(name="a", tasks=tuple((f"t{n}", f"/t/{n}") for n in range(5)), harness="mini-swe-agent")


def test_a_group_is_one_task_under_one_harness():
    specs = make_group(3, SOURCE, "t2", size=4, step=0, sampling=Sampling(), max_attempts=2)
    assert len({spec.rollout_id for spec in specs}) == 4
    assert {spec.group_id for spec in specs} == {group_id(3)}
    assert {(spec.task_id, spec.task_path, spec.harness) for spec in specs} == {("t2", "/t/2", "mini-swe-agent")}


@given(st.integers(0, 5), st.integers(1, 6), st.integers(1, 30))
def test_groups_taken_in_the_order_of_their_start_are_never_too_old(staleness: int, size: int, updates: int):
    """Started as early as the rule allows, update by update: the version difference is at most max_staleness."""
    started_at: list[int] = []
    for version in range(updates):
        most = capacity(version, staleness, size)
        started_at += [version] * (most - len(started_at))
        batch = started_at[version * size : (version + 1) * size]
        assert len(batch) == size  # the rule never starves an update
        assert all(version - started <= staleness for started in batch)


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
