"""What groups are made of, which are complete, which were trained: pure functions over rollout records.

Groups are numbered from 0. Their tasks follow from the run's seed and the groups before them, which are in the store, so a
restarted run makes the same groups again and finds the old ones by name.
Invariants (tests/loop/test_groups.py):
- a group is one task under one harness and one variant of its settings, and a source's groups have its variants in turn;
- a group is ready when all its rollouts are terminal and it is in no step yet; ready groups keep the order of completion;
- no more groups are started than the capacity rule allows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from whippletree.loop.curriculum import CurriculumConfig
from whippletree.types import Rollout, RolloutSpec, Sampling, StepRecord, Struct


class SourceTasks(Struct):
    """A source as the loop sees it: task ids and paths, its harness with the names of its variants, its share of the groups.

    Example: SourceTasks(name="trail", tasks=(("trail-3", "/run/tasks/trail/train/trail-3"),), harness="mini-swe-agent")
    """

    name: str
    tasks: tuple[tuple[str, str], ...]
    harness: str
    share: float = 1.0
    labels: dict[str, dict[str, str]] = {}
    curriculum: CurriculumConfig | None = None
    variants: tuple[str, ...] = ()

    def variant(self, turn: int) -> str:
        """Under which variant its group number `turn`, from 0, runs: each in turn."""
        return self.variants[turn % len(self.variants)] if self.variants else ""


def capacity(policy_version: int, max_staleness: int, groups_per_step: int) -> int:
    """Most groups that may have been started, of the whole run, while the learner is at `policy_version`: then the last of them
    is in an update of version policy_version + max_staleness at the latest, if updates take them in the order of their start
    (AReaL, arXiv:2505.24298, Eq. 3)."""
    return (policy_version + max_staleness + 1) * groups_per_step


def group_id(number: int) -> str:
    """Name of a training group."""
    return f"g{number:05d}"


def make_group(
    number: int,
    source: SourceTasks,
    task_id: str,
    *,
    size: int,
    step: int,
    sampling: Sampling,
    max_attempts: int,
    variant: str = "",
) -> list[RolloutSpec]:
    """The rollouts of training group `number`; `step` is the update that is being collected for."""
    return [
        RolloutSpec(
            rollout_id=f"{group_id(number)}-m{member:02d}",
            group_id=group_id(number),
            source=source.name,
            task_id=task_id,
            task_path=dict(source.tasks)[task_id],
            harness=source.harness,
            purpose="train",
            step=step,
            sampling=sampling,
            max_attempts=max_attempts,
            labels=source.labels.get(task_id, {}),
            variant=variant,
        )
        for member in range(size)
    ]


class Progress(Struct):
    """Where the groups of a run stand. `ready` is ordered by completion.

    Example: Progress(created=12, ready=("g00003", "g00001"), open=("g00008",), trained=("g00000",))
    """

    created: int
    ready: tuple[str, ...]
    open: tuple[str, ...]
    trained: tuple[str, ...]


def by_group(rollouts: Iterable[Rollout]) -> dict[str, list[Rollout]]:
    """Rollouts by group, in order of the groups' names and their own."""
    members: Mapping[str, list[Rollout]] = defaultdict(list)
    for rollout in sorted(rollouts, key=lambda rollout: (rollout.spec.group_id, rollout.spec.rollout_id)):
        members[rollout.spec.group_id].append(rollout)
    return dict(members)


def progress(rollouts: Iterable[Rollout], steps: Iterable[StepRecord]) -> Progress:
    """Fold the records of training rollouts and steps."""
    members = by_group(rollouts)
    planned = {rollout_id for step in steps for rollout_id in step.rollout_ids}
    ready: list[tuple[float, str]] = []
    unfinished: list[str] = []
    trained: list[str] = []
    for name, group in members.items():
        if any(rollout.spec.rollout_id in planned for rollout in group):
            trained.append(name)
        elif all(rollout.terminal for rollout in group):
            ready.append((max(rollout.updated for rollout in group), name))
        else:
            unfinished.append(name)
    return Progress(
        created=len(members),
        ready=tuple(name for _, name in sorted(ready)),
        open=tuple(unfinished),
        trained=tuple(trained),
    )
