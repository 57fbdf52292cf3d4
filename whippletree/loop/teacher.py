"""A teacher on a server: its logprobs of what finished rollouts sampled, fetched beside the loop.

    rollout over ─► look ─► its paths ─► engine.score ─► a column of each call in the store ─┐
                              (at most `at_once` in flight)                                  ├─► rows ─► distillation
    batch complete ─► settle: waits for the rest, at most `limit` seconds ─► failed: an event ┘

Who waits for whom: the loop waits in `settle` for the teacher's server; the limit unblocks it. Nothing else waits.

Invariants (tests/loop/test_teacher.py):
- a column is what the teacher gives each sampled token under the prompt that was fed, or there is none: never a zero;
- a rollout that was given up stays so, whenever an answer comes, so that a replayed step trains what it trained;
- whatever the teacher does, a batch waits no longer than `limit`; what failed is on the rollout's record, with its cause.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Iterable, Mapping

import numpy as np

from whippletree.batching.advantages import exclusion
from whippletree.errors import ContextOverflow, EngineError, EngineUnavailable, WhippletreeError
from whippletree.loop.config import TeacherConfig
from whippletree.protocols import Engine, Store
from whippletree.traces import Trace, TracesConfig, build_samples, load_trace
from whippletree.types import Call, Event, Float32, Rollout, Sample

log = logging.getLogger(__name__)

COLUMN = "teacher"  # name of the payload column
FAILED = "teacher_failed"  # kind of the event of a rollout that was given up
RETRY_SECONDS = 0.5
CLOSE_SECONDS = 5.0


class Teacher:
    """Scores finished rollouts. Its event loop runs on a thread of its own. `engine` is closed with it."""

    def __init__(self, engine: Engine, store: Store, config: TeacherConfig, traces: TracesConfig) -> None:
        self._engine = engine
        self._store = store
        self._config = config
        self._traces = traces
        self._open: set[str] = set()
        self._skipped: set[str] = set()
        self._known = 0
        self._under_way: dict[str, concurrent.futures.Future[None]] = {}
        self._why: dict[str, str] = {}
        self._loop = asyncio.new_event_loop()
        self._room = asyncio.Semaphore(config.at_once)
        self._thread = threading.Thread(target=self._loop.run_forever, name="teacher", daemon=True)
        self._thread.start()

    def skip(self, rollout_ids: Iterable[str]) -> None:
        """These are trained already, or about to be: what is known of them is all there will be."""
        self._skipped.update(rollout_ids)

    def look(self, rollouts: Mapping[str, Rollout]) -> None:
        """Begin to score those that are over; never waits. `rollouts` of the run, by id; it only grows."""
        if len(rollouts) != self._known:
            self._open |= rollouts.keys() - self._under_way.keys() - self._skipped
            self._known = len(rollouts)
        for name in [name for name in self._open if rollouts[name].terminal]:
            self._open.discard(name)
            if exclusion(rollouts[name].reward) is None:
                self._begin(rollouts[name])

    def settle(self, rollouts: Iterable[Rollout]) -> None:
        """Wait until each of these, which are over, is scored or given up."""
        voters = [rollout for rollout in rollouts if exclusion(rollout.reward) is None]
        for rollout in voters:
            if rollout.spec.rollout_id not in self._under_way:
                self._begin(rollout)
        futures = {self._under_way[rollout.spec.rollout_id]: rollout for rollout in voters}
        done, late = concurrent.futures.wait(futures, timeout=self._config.limit)
        for future in late:
            future.cancel()
        failures = [self._give_up(futures[future], self._cause(futures[future], future)) for future in late]
        failures += [
            self._give_up(futures[future], self._cause(futures[future], future))
            for future in done
            if future.cancelled() or future.exception() is not None
        ]
        self._store.append_events(failures).result()

    def close(self) -> None:
        """End what is under way, close connections and end the thread."""
        for future in self._under_way.values():
            future.cancel()
        asyncio.run_coroutine_threadsafe(self._engine.close(), self._loop).result(CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=CLOSE_SECONDS)

    def _begin(self, rollout: Rollout) -> None:
        future = asyncio.run_coroutine_threadsafe(self._score(rollout), self._loop)
        self._under_way[rollout.spec.rollout_id] = future

    async def _score(self, rollout: Rollout) -> None:
        """Raises EngineError, and StoreError or AlignmentError where the rollout cannot be read."""
        trace, samples, missing = await asyncio.to_thread(self._read, rollout)
        for sample in samples:
            calls = [trace.node(name) for name in sample.call_ids]
            wanted = [node for node in calls if node.call_id in missing and sample.trained[node.prompt_length]]
            if wanted:
                scores = await self._patiently(rollout.spec.rollout_id, sample)
                for node in wanted:
                    where = slice(node.prompt_length - 1, node.prompt_length - 1 + len(node.sampled_ids))
                    await self._keep(node.call, scores[where])

    def _read(self, rollout: Rollout) -> tuple[Trace, list[Sample], set[str]]:
        """Trace, samples, and the trainable calls without a column, of a rollout that was not given up."""
        name = rollout.spec.rollout_id
        if any(event.kind == FAILED and event.attempt == rollout.attempt for event in self._store.events(name)):
            return Trace(), [], set()
        trace = load_trace(self._store, rollout, self._traces)
        there = self._store.columns(name, rollout.attempt, COLUMN)
        missing = {node.call_id for node in trace.nodes if node.trainable and node.call_id not in there}
        return trace, build_samples(trace, rollout.spec), missing

    async def _patiently(self, name: str, sample: Sample) -> Float32:
        """Logprobs of the sample's tokens after the first. One who does not answer is asked again; `settle` ends that."""
        while True:
            try:
                async with self._room:
                    return np.asarray(await self._engine.score(sample.token_ids.tolist()), np.float32)
            except EngineUnavailable as error:
                self._why[name] = f"unavailable: {error}"
                await asyncio.sleep(max(RETRY_SECONDS, error.retry_after))

    async def _keep(self, call: Call, values: Float32) -> None:
        await asyncio.wrap_future(self._store.record_column(call, COLUMN, values))

    def _cause(self, rollout: Rollout, future: concurrent.futures.Future[None]) -> str:
        error = future.exception() if future.done() and not future.cancelled() else None
        if error is None:
            return self._why.get(rollout.spec.rollout_id, f"slow: no answer within {self._config.limit:g} s (teacher.limit)")
        if isinstance(error, ContextOverflow):
            return f"overflow: {error}"
        if isinstance(error, EngineError):
            return f"refused: {error}"
        if isinstance(error, WhippletreeError):
            return f"unreadable: {error}"
        raise error

    def _give_up(self, rollout: Rollout, told: str) -> Event:
        name = rollout.spec.rollout_id
        cause, _, message = told.partition(": ")
        log.warning("the teacher did not score %s: %s", name, told)
        return Event(
            event_id=f"{name}/{rollout.attempt}/{FAILED}",
            rollout_id=name,
            attempt=rollout.attempt,
            time=time.time(),
            kind=FAILED,
            data={"cause": cause, "message": message},
        )


def teacher_columns(store: Store, rollout: Rollout) -> tuple[dict[str, Float32], str]:
    """The teacher's logprobs by call_id, and the cause where the rollout was given up ("": it was not)."""
    name = rollout.spec.rollout_id
    for event in store.events(name):
        if event.kind == FAILED and event.attempt == rollout.attempt:
            return {}, str(event.data.get("cause", "unknown"))
    return store.columns(name, rollout.attempt, COLUMN), ""


def teacher_of_sample(trace: Trace, sample: Sample, columns: Mapping[str, Float32]) -> Float32 | None:
    """The teacher's logprob of each trained token of a sample, shape [trained]; None where one is missing."""
    found = []
    for name in sample.call_ids:
        node = trace.node(name)
        if len(node.sampled_ids) and sample.trained[node.prompt_length]:
            if name not in columns:
                return None
            found.append(columns[name])
    return np.concatenate(found) if found else np.zeros(0, np.float32)


def failures_told(causes: Mapping[str, int]) -> tuple[str, ...]:
    """An alarm about rollouts that the teacher did not score; () for none."""
    if not causes:
        return ()
    told = ", ".join(f"{count} x {cause}" for cause, count in sorted(causes.items()))
    return (f"the teacher did not score {sum(causes.values())} rollouts, which are left out of the loss: {told}",)
