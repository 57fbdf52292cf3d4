"""The verbs that the loops are written in, over one run directory.

    run directory
    ├── config.toml        the resolved configuration            ├── store/        every rollout, attempt, event and call
    ├── metrics.jsonl      one line per update (+ .parquet)      ├── checkpoints/  Hugging Face layout, atomic
    ├── eval.jsonl         one line per evaluation               ├── logs/         one file per process
    └── summary.json       the run in one object                 └── report.html, report.png

Order of one step, and why a kill at any point trains each rollout exactly once in the history of the weights:
plan (rollout ids of this step, durable) → its update, or updates, in memory → checkpoint (atomic) → commit → publish. A restart
loads the last checkpoint and replays, with the recorded rollouts, the steps that were planned after it. A checkpoint holds
whole steps: one that was killed between two updates of a batch makes all of them again, from the weights before the first.
Invariants (tests/loop/test_run.py):
- no rollout is in two steps; a step planned before a crash is replayed with the same rollouts, to the same weights bit for bit;
- a step is committed with the checkpoint that holds it, also when the process was killed between the two;
- a step with too many failures stops the run once: resumed, it trains what there is of it and goes on;
- after each publish the engine's logprobs of a known prompt are the learner's, or the run stops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from whippletree.errors import StoreError, WhippletreeError
from whippletree.learner import checkpoint
from whippletree.learner.learner import BatchStats, Learner
from whippletree.loop.batch import NEWEST, Batch, build_batch
from whippletree.loop.collecting import Collector
from whippletree.loop.config import RunConfig
from whippletree.loop.evaluation import Evaluations, Heldout, evaluation_specs
from whippletree.loop.fleet import Fleet
from whippletree.loop.groups import Progress, SourceTasks
from whippletree.loop.metrics import Log, StepMetrics, UpdateMetrics, finite, finite_ones
from whippletree.loop.rubrics import rubric_alarms, rubric_metrics
from whippletree.loop.teacher import Teacher
from whippletree.loop.watch import Watch
from whippletree.protocols import Store
from whippletree.store.retention import releasable
from whippletree.types import Purpose, Sampling, StepRecord

QUOTED = 300  # characters of a failure's message
KNOWN_PROMPT_TOKENS = 48


class Run:
    """A run in progress: its records, its learner and its fleet."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        *,
        store: Store,
        learner: Learner,
        fleet: Fleet,
        sources: Sequence[SourceTasks],
        heldout: Sequence[Heldout],
        model_directory: Path,
        weights_directory: Path,
        missing: Callable[[], str] = str,
        teacher: Teacher | None = None,
    ) -> None:
        """`missing`: which of those is not there whom rollouts need, in words ("" for none)."""
        self.config = config
        self.directory = directory
        self.store = store
        self.learner = learner
        self.fleet = fleet
        self.heldout = heldout
        self.model_directory = model_directory
        self.weights_directory = weights_directory
        self.log = Log(directory)
        self._missing = missing
        self.watch = self._watch("train")
        self.records: dict[int, StepRecord] = {record.step: record for record in store.steps()}
        self.evaluations = Evaluations(self._watch("eval"), self.log, limit=config.loop.eval_limit)
        self.teacher = teacher
        self.collector = Collector(config, self.watch, sources, self.records, beside=self._beside)
        self._short: dict[str, str] = {}
        self.step = 0
        self._collected_since = time.time()
        self._weight_check = float("nan")
        self._known_prompt: list[int] = []

    def _watch(self, purpose: Purpose) -> Watch:
        loop = self.config.loop
        return Watch(self.store, purpose, stall_limit=loop.stall_limit, missing=self._missing, peer_limit=loop.peer_limit)

    def _beside(self) -> bool:
        """What goes on while the loop waits for rollouts. True where evaluation rollouts have changed."""
        if self.teacher is not None:
            self.teacher.look(self.watch.rollouts)
        return self.evaluations.look()

    @property
    def sampling(self) -> Sampling:
        """The sampling that the run fixes for every rollout."""
        section = self.config.sampling
        return Sampling(temperature=section.temperature, top_p=section.top_p, max_tokens=section.max_tokens)

    # --- start and restart -------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Load the last checkpoint, if any; replay planned steps after it; give the engines the result; let calls through."""
        found = checkpoint.latest(self.directory / "checkpoints")
        if found is not None:
            self.step = checkpoint.restore(self.learner, found).step
            self._check_record(found)
            self._commit(found.name)  # of a save whose learner was killed before it could say so
        self.watch.refresh()
        self.evaluations.adopt()
        if self.teacher is not None:
            self.teacher.skip(name for record in self.records.values() for name in record.rollout_ids)
        while self.step in self.records:
            self._apply(self.records[self.step], seconds_collect=0.0, replayed=True)
        self.publish()
        self.fleet.gateway.release()  # of a hold whose learner was killed

    def _check_record(self, found: Path) -> None:
        """The record knows every update that the checkpoint holds, or rollouts would be made and trained a second time.

        Raises StoreError.
        """
        missing = [step for step in range(self.step) if step not in self.records]
        if missing:
            raise StoreError(
                f"{found} holds {self.step} updates, but the run's record ({self.directory / 'store'}) knows nothing of update "
                f"{missing[0]}" + (f" and {len(missing) - 1} others" if len(missing) > 1 else ""),
                "put the record back that belongs to this checkpoint; to go on without it, start a new run from these weights",
            )

    # --- collecting --------------------------------------------------------------------------------------------------

    def progress(self) -> Progress:
        """Where the groups stand."""
        return self.collector.progress()

    def create_groups(self, *, until: int, step: int) -> None:
        """Create training groups up to number `until` (exclusive); those that exist are left alone."""
        self._collected_since = time.time()
        self.collector.create(until=until, step=step)

    def collect(self, step: int, *, until: int, ahead: bool = True, oldest_first: bool = False) -> tuple[str, ...]:
        """Keep groups up to number `until` (exclusive) going and block until those of update `step` are complete, each source's
        share of them; these are returned, scored by the teacher where one is on a server. `ahead`: start more where filters
        will drop some; `oldest_first`: take the groups that were started first, instead of those that were complete first."""
        self._collected_since = time.time()
        mixed = self.collector.collect(step, until=until, ahead=ahead, oldest_first=oldest_first)
        self._short = mixed.short
        if self.teacher is not None:
            groups = set(mixed.groups)
            self.teacher.settle(one for one in self.watch.rollouts.values() if one.spec.group_id in groups)
        return mixed.groups

    def ready_groups(self) -> tuple[str, ...]:
        """Complete, untrained groups, in order of completion."""
        return self.progress().ready

    @contextmanager
    def held(self) -> Iterator[None]:
        """No call is sampled while the body runs."""
        with self.fleet.held():
            yield

    # --- updating ----------------------------------------------------------------------------------------------------

    def update(self, step: int, groups: Sequence[str]) -> None:
        """One step from these groups: plan, learn (one update, or several), checkpoint, commit, publish, log."""
        rollouts = sorted(
            rollout.spec.rollout_id for rollout in self.watch.rollouts.values() if rollout.spec.group_id in set(groups)
        )
        record = StepRecord(step=step, rollout_ids=tuple(rollouts), policy_version=self.learner.policy_version + 1)
        self.store.plan_step(record).result()
        self.records[step] = record
        metrics = self._apply(record, seconds_collect=time.time() - self._collected_since, replayed=False)
        started = time.time()
        self.publish()
        seconds = time.time() - started
        check = finite(self._weight_check)
        self.log.append("metrics", msgspec.structs.replace(metrics, seconds_publish=seconds, weight_check_diff=check))

    def _apply(self, record: StepRecord, *, seconds_collect: float, replayed: bool) -> StepMetrics:
        started = time.time()
        rollouts = [self.watch.rollouts[rollout_id] for rollout_id in record.rollout_ids]
        rubrics = rubric_metrics(self.store, rollouts) if self.config.control.rubrics else {}
        batch = build_batch(
            self.store,
            rollouts,
            self.config.learner,
            policy_version=self.learner.policy_version,
            batching=self.config.batching,
            traces=self.config.traces,
            max_staleness=NEWEST if self.config.loop.kind == "synchronous" else self.config.loop.max_staleness,
            values=None if self.learner.critic is None else self.learner.values,
            taught=self.teacher is not None,
        )
        if not replayed:  # a resumed run goes on without them
            self._refuse_broken(record.step, batch)
        if events := batch.shaping_events(record.step, time.time()):
            self.store.append_events(events).result()
        found = self.learner.update_batch(batch.updates)
        stats = found.whole
        self.step = record.step + 1
        metrics = StepMetrics(
            step=record.step,
            policy_version=self.learner.policy_version,
            time=time.time(),
            tokens_trained=stats.tokens,
            loss=stats.loss,
            grad_norm=stats.grad_norm,
            clip_fraction=stats.clip_fraction,
            ratio_max=stats.ratio_max,
            logprob_max_abs_diff=finite(stats.logprob_max_abs_diff),
            logprob_correlation=finite(stats.logprob_correlation),
            weight_check_diff=None,
            seconds_collect=seconds_collect,
            seconds_update=time.time() - started,
            seconds_publish=0.0,
            replayed=replayed,
            learner=finite_ones(stats.metrics),
            updates=_each_update(batch, found) if len(found.updates) > 1 else (),
            rubrics=rubrics,
            **{**batch.metrics(), "alarms": (*self._shares(), *batch.alarms, *rubric_alarms(rubrics), *stats.alarms)},
        )
        self.log.append("metrics", metrics)
        last = self.step == self.config.loop.steps
        if last or self.step % self.config.learner.checkpoint_every == 0:
            self._save()
        return metrics

    def _save(self) -> None:
        directory = self.directory / "checkpoints"
        path = checkpoint.save(self.learner, directory, step=self.step, tokenizer_from=self.model_directory)
        self._commit(path.name)
        checkpoint.prune(directory, keep=self.config.learner.keep_checkpoints)

    def _commit(self, name: str) -> None:
        """Checkpoint `name` holds every step before `self.step`; those that were in no earlier one are committed with it."""
        for number, record in sorted(self.records.items()):
            if number < self.step and not record.committed:
                self.store.commit_step(number, name).result()
                self.records[number] = msgspec.structs.replace(record, committed=True, checkpoint=name)
        if self.config.store.retain != "all":
            committed = max((number for number, record in self.records.items() if record.committed), default=-1)
            self.store.release(releasable(self.store.rollouts(), committed, self.config.store))

    def _shares(self) -> list[str]:
        """Why the batch at hand has not every source's share. Said once."""
        short, self._short = self._short, {}
        return [f"source {source} has {why}" for source, why in short.items()]

    def _refuse_broken(self, step: int, batch: Batch) -> None:
        share = batch.failed / max(1, batch.rollouts)
        if share > self.config.loop.max_failed_share:
            causes = ", ".join(f"{count} x {cause}" for cause, count in sorted(batch.causes.items()))
            example = f"; one of them ({batch.cause.cause}): {batch.cause.message[:QUOTED]}" if batch.cause else ""
            raise WhippletreeError(
                f"step {step}: {batch.failed} of {batch.rollouts} rollouts failed: {causes}{example}",
                "look at one with `whippletree rollouts show`, mend the cause, then `whippletree train --resume`",
            )

    def publish(self) -> None:
        """Give the engines the learner's weights and check that they serve them. Raises WeightMismatch."""
        update = checkpoint.write_weights(self.learner, self.weights_directory, tokenizer_from=self.model_directory)
        self.fleet.publish(update)
        prompt = self._prompt()
        self._weight_check = self.fleet.check(
            prompt, self.learner.score(prompt).tolist(), tolerance=self.config.learner.max_logprob_diff
        )

    def _prompt(self) -> list[int]:
        """A fixed prompt spread over the vocabulary."""
        if not self._known_prompt:
            vocabulary = int(self.learner.model.config.vocab_size)
            self._known_prompt = [(index * 7919 + 13) % vocabulary for index in range(KNOWN_PROMPT_TOKENS)]
        return self._known_prompt

    # --- evaluating --------------------------------------------------------------------------------------------------

    def begin_evaluation(self, step: int) -> None:
        """Begin to evaluate the held-out tasks, where that is due after `step` updates, with the weights that the engines have
        now. Waits for nothing; the line is written when its rollouts are over."""
        loop = self.config.loop
        if self.heldout and (step in (0, loop.steps) or (loop.eval_every > 0 and step % loop.eval_every == 0)):
            specs = evaluation_specs(
                self.heldout, step=step, samples=loop.eval_samples, sampling=self.sampling, max_attempts=loop.max_attempts
            )
            self.evaluations.begin(specs, step=step, policy_version=self.learner.policy_version)

    def finish_evaluations(self) -> None:
        """Wait for the evaluations that are under way, each within its limit."""
        self.evaluations.finish()

    def evaluate_if_due(self, step: int) -> None:
        """Evaluate and wait for it, so that the weights of `step` updates alone sample it."""
        self.begin_evaluation(step)
        self.finish_evaluations()


def _each_update(batch: Batch, found: BatchStats) -> tuple[UpdateMetrics, ...]:
    return tuple(
        UpdateMetrics(
            rollouts=len(plan.rollout_ids),
            tokens_trained=stats.tokens,
            loss=stats.loss,
            grad_norm=stats.grad_norm,
            clip_fraction=stats.clip_fraction,
            ratio_max=stats.ratio_max,
            row_fill=plan.fill if stats.rows else None,
            learner=finite_ones(stats.metrics),
        )
        for plan, stats in zip(batch.plan.updates, found.updates, strict=True)
    )
