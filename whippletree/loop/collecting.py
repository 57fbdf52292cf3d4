"""Starting groups and waiting for a batch of them: the policies of mixer, curriculum and groups, over the store.

    mixer: which sources ─► curriculum: which tasks ─► store ◄── controller
       ▲                                                │ groups complete
       └──── filters judge them (metadata alone) ◄──────┘ ──► a batch with every source's quota

The collector waits for the controller, by `Watch` (which says who unblocks it). All that it decides on is in the store.
Invariants (tests/loop/test_collecting.py):
- the same records lead to the same groups, so a restarted run makes none twice;
- with `loop.replace_dropped` a batch has groups_per_step groups that the filters keep, or says which source is short of them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from whippletree.batching.advantages import exclusion
from whippletree.batching.config import PER_CALL
from whippletree.batching.prepare import judge
from whippletree.loop.batch import members_of
from whippletree.loop.calls import call_rewards_of, rewards_of
from whippletree.loop.config import RunConfig
from whippletree.loop.curriculum import draw_task, next_task
from whippletree.loop.groups import Progress, SourceTasks, by_group, make_group, progress
from whippletree.loop.mixer import CompleteGroup, Demand, Mixed, accept_rate, dispatch, mix, quotas
from whippletree.loop.watch import Watch
from whippletree.traces import load_trace
from whippletree.types import Rollout, Sampling, StepRecord

log = logging.getLogger(__name__)

RECENT = 64
"""Complete groups of a source, the latest ones, that its accept rate is of."""


class Collector:
    """Starts groups and chooses those of an update. `records` is the run's own mapping of steps, which it only reads."""

    def __init__(
        self,
        config: RunConfig,
        watch: Watch,
        sources: Sequence[SourceTasks],
        records: Mapping[int, StepRecord],
        *,
        beside: Callable[[], bool] = bool,
    ) -> None:
        """`beside`: see Watch.until."""
        self._config = config
        self._store = watch.store
        self._watch = watch
        self._sources = sources
        self._records = records
        self._beside = beside
        self._verdicts: dict[str, str] = {}
        self._planned: set[str] = set()
        self._steps_seen = 0

    def progress(self) -> Progress:
        """Where the groups stand."""
        return progress(self._watch.rollouts.values(), self._records.values())

    def create(self, *, until: int, step: int, ahead: bool = True) -> None:
        """Start the groups that the updates up to group number `until` (exclusive) are short of; those that exist count.
        `ahead`: start more where some will be dropped and replaced, by the share that was."""
        self._watch.refresh()
        groups = by_group(self._watch.rollouts.values())
        history: dict[str, list[str]] = defaultdict(list)
        for members in groups.values():
            history[members[0].spec.source].append(members[0].spec.task_id)
        number, specs, loop = len(groups), [], self._config.loop
        for index in dispatch(self._demands(groups, until=until, step=step, ahead=ahead)):
            source = self._sources[index]
            task = self._task(source, history[source.name], groups)
            variant = source.variant(len(history[source.name]))
            history[source.name].append(task)
            specs += make_group(
                number,
                source,
                task,
                size=loop.group_size,
                step=step,
                sampling=self._sampling,
                max_attempts=loop.max_attempts,
                variant=variant,
            )
            number += 1
        if specs:
            self._store.create_rollouts(specs).result()

    def collect(self, step: int, *, until: int, ahead: bool, oldest_first: bool) -> Mixed:
        """Start groups and block until a batch of them is complete (see loop/watch.py for who unblocks this)."""
        found: Mixed | None = None
        while found is None:
            self.create(until=until, step=step, ahead=ahead)
            found = self._wait(step, oldest_first)
        for source, why in found.short.items():
            log.warning("update %d: source %s has %s", step, source, why)
        return found

    def _wait(self, step: int, oldest_first: bool) -> Mixed | None:
        """Block until there is a batch, or another group was dropped, which may have to be replaced (None)."""
        before = _dropped(self._complete())

        def over() -> bool:
            complete = self._complete()
            return self._choose(complete, step, oldest_first) is not None or _dropped(complete) > before

        self._watch.until(over, beside=self._beside)
        return self._choose(self._complete(), step, oldest_first)

    @property
    def _sampling(self) -> Sampling:
        section = self._config.sampling
        return Sampling(temperature=section.temperature, top_p=section.top_p, max_tokens=section.max_tokens)

    def _quotas(self, step: int, until: int | None = None) -> tuple[int, ...]:
        size = self._config.loop.groups_per_step
        end = (step + 1) * size if until is None else until
        return quotas(step * size, max(end, step * size), [source.share for source in self._sources])

    def _choose(self, complete: Sequence[CompleteGroup], step: int, oldest_first: bool) -> Mixed | None:
        wanted = {source.name: quota for source, quota in zip(self._sources, self._quotas(step), strict=True)}
        if oldest_first:
            complete = sorted(complete, key=lambda group: (len(group.group_id), group.group_id))
        return mix(complete, wanted, most_dropped=self._config.loop.replace_at_most)

    def _demands(self, groups: Mapping[str, list[Rollout]], *, until: int, step: int, ahead: bool) -> list[Demand]:
        kept: dict[str, int] = defaultdict(int)
        for group in self._complete():
            kept[group.source] += not group.dropped
        underway: dict[str, int] = defaultdict(int)
        for members in self._untrained().values():
            underway[members[0].spec.source] += not all(rollout.terminal for rollout in members)
        here, window = self._quotas(step), self._quotas(step, until)
        return [
            Demand(
                quota=here[index],
                owed=window[index],
                kept=kept[source.name],
                open=underway[source.name],
                rate=self._rate(groups, source.name) if ahead else 1.0,
            )
            for index, source in enumerate(self._sources)
        ]

    def _untrained(self) -> dict[str, list[Rollout]]:
        """Groups that are in no step yet: few, however long the run is."""
        if self._steps_seen != len(self._records):
            self._planned = {name for record in self._records.values() for name in record.rollout_ids}
            self._steps_seen = len(self._records)
        return by_group(rollout for name, rollout in self._watch.rollouts.items() if name not in self._planned)

    def _complete(self) -> list[CompleteGroup]:
        """Groups that are complete and in no step yet, in order of completion."""
        groups = self._untrained()
        ready = progress((rollout for members in groups.values() for rollout in members), ()).ready
        return [
            CompleteGroup(group_id=name, source=groups[name][0].spec.source, dropped=self._verdict(groups[name]))
            for name in ready
        ]

    def _verdict(self, group: Sequence[Rollout]) -> str:
        """Why the filters drop a complete group; "" for one that they keep, and where dropped ones are not replaced."""
        if not self._config.loop.replace_dropped:
            return ""
        name = group[0].spec.group_id
        if name not in self._verdicts:
            calls = {
                rollout.spec.rollout_id: self._store.calls(rollout.spec.rollout_id, rollout.attempt)
                for rollout in group
                if exclusion(rollout.reward) is None
            }
            every_row = self._config.learner.trains_all_rows
            members = members_of(group, calls, self._call_rewards(group))
            judged = judge(members, [], self._config.batching, every_row=every_row)
            self._verdicts[name] = "".join(f"{found.filter}: {found.reason}" for found in judged.kept.dropped)
        return self._verdicts[name]

    def _call_rewards(self, group: Sequence[Rollout]) -> dict[str, tuple[float | None, ...]]:
        """What each call of the group's rollouts earned, where the estimator asks for that."""
        if self._config.batching.advantages.estimator != PER_CALL:
            return {}
        return {
            rollout.spec.rollout_id: rewards_of(
                load_trace(self._store, rollout, self._config.traces), call_rewards_of(self._store, rollout)
            )[0]
            for rollout in group
            if exclusion(rollout.reward) is None
        }

    def _rate(self, groups: Mapping[str, list[Rollout]], source: str) -> float:
        """Share of a source's latest complete groups that the filters keep."""
        done = [
            group for group in groups.values() if group[0].spec.source == source and all(member.terminal for member in group)
        ]
        verdicts = [self._verdict(group) for group in done[-RECENT:]]
        dropped = sum(map(bool, verdicts))
        return accept_rate(len(verdicts) - dropped, dropped)

    def _task(self, source: SourceTasks, history: Sequence[str], groups: Mapping[str, list[Rollout]]) -> str:
        tasks = [task for task, _ in source.tasks]
        seed = f"{self._config.run.seed}/{source.name}"
        if source.curriculum is None:
            return next_task(history, tasks, seed=seed)
        return draw_task(history, tasks, self._pass_rates(source.name, groups), source.curriculum, seed=seed)

    def _pass_rates(self, source: str, groups: Mapping[str, list[Rollout]]) -> dict[str, list[float]]:
        """Share of passed rollouts of each group of each task that is complete and has a reward, oldest first."""
        found: dict[str, list[float]] = defaultdict(list)
        for group in groups.values():
            rewards = [rollout.reward for rollout in group if rollout.reward is not None]
            if group[0].spec.source == source and rewards and all(rollout.terminal for rollout in group):
                passed = sum(reward >= self._config.batching.passing for reward in rewards)
                found[group[0].spec.task_id].append(passed / len(rewards))
        return found


def _dropped(groups: Sequence[CompleteGroup]) -> int:
    return sum(bool(group.dropped) for group in groups)
