"""Which group comes next, which are complete, which were trained: pure functions over rollout records.

Groups are numbered from 0 and everything about group n follows from the run's seed and n, so a restarted run makes the same
groups again and finds the old ones in the store by name.
Invariants (tests/loop/test_groups.py):
- over any window, each source gets its share of groups to within one;
- a task comes again only after every other task of its source came once;
- a group is ready when all its rollouts are terminal and it is in no step yet; ready groups keep the order of completion.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from whippletree.types import Rollout, RolloutSpec, Sampling, StepRecord, Struct


class SourceTasks(Struct):
    """A source as the loop sees it: task ids and paths, its harness, its share of the groups.

    Example: SourceTasks(name="trail", tasks=(("trail-3", "/run/tasks/trail/train/trail-3"),), harness="mini-swe-agent")
    """

    name: str
    tasks: tuple[tuple[str, str], ...]
    harness: str
    share: float = 1.0
    labels: dict[str, dict[str, str]] = {}


def pick_source(number: int, shares: Sequence[float]) -> tuple[int, int]:
    """Source of group `number`, and how many groups of that source came before it (smooth weighted round-robin)."""
    total = sum(shares)
    current = [0.0] * len(shares)
    counts = [0] * len(shares)
    chosen = 0
    for _ in range(number + 1):
        current = [value + share for value, share in zip(current, shares, strict=True)]
        chosen = max(range(len(shares)), key=lambda index: (current[index], -index))
        current[chosen] -= total
        counts[chosen] += 1
    return chosen, counts[chosen] - 1


def pick_task(source: SourceTasks, turn: int, seed: int) -> tuple[str, str]:
    """Task id and path of a source's `turn`-th group: epochs, each shuffled by the seed."""
    epoch, offset = divmod(turn, len(source.tasks))
    order = list(range(len(source.tasks)))
    random.Random(f"{seed}/{source.name}/{epoch}").shuffle(order)
    return source.tasks[order[offset]]


def group_id(number: int) -> str:
    """Name of a training group."""
    return f"g{number:05d}"


def make_group(
    number: int, sources: Sequence[SourceTasks], *, size: int, seed: int, step: int, sampling: Sampling, max_attempts: int
) -> list[RolloutSpec]:
    """The rollouts of training group `number`; `step` is the update that is being collected for."""
    chosen, turn = pick_source(number, [source.share for source in sources])
    source = sources[chosen]
    task_id, path = pick_task(source, turn, seed)
    return [
        RolloutSpec(
            rollout_id=f"{group_id(number)}-m{member:02d}",
            group_id=group_id(number),
            source=source.name,
            task_id=task_id,
            task_path=path,
            harness=source.harness,
            purpose="train",
            step=step,
            sampling=sampling,
            max_attempts=max_attempts,
            labels=source.labels.get(task_id, {}),
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


def progress(rollouts: Iterable[Rollout], steps: Iterable[StepRecord]) -> Progress:
    """Fold the records of training rollouts and steps."""
    members: Mapping[str, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        members[rollout.spec.group_id].append(rollout)
    planned = {rollout_id for step in steps for rollout_id in step.rollout_ids}
    ready: list[tuple[float, str]] = []
    unfinished: list[str] = []
    trained: list[str] = []
    for name, group in sorted(members.items()):
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
