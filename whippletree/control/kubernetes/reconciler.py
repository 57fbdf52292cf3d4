"""The Kubernetes reconciler: what the store wants against what the cluster has, again and again.

    store ── claim ──► wanted ─┐                    ┌─► place ──► Job ──► pod ──HTTP──► gateway
                               ├─► decide ─► tasks ─┤
    mirrors of Jobs and pods ──┘                    └─► record: seal, judge, logs, finish ──► Job is deleted
    The loop waits for: a change in a mirror, a task's end, the next look (`poll_seconds`), or the request to stop.
    An attempt that waits for rubrics is handed over: its Job is deleted, and the grader finishes it (grading.py).

Invariants (tests/control/kubernetes/test_kubernetes_reconciler.py, test_kubernetes_restart.py):
- every claimed attempt is finished once, with what the cluster says of its Job; one that was fenced off changes nothing;
- a reconciler that starts adopts the Jobs of running attempts, records those that ended meanwhile, deletes the rest of its own;
- an attempt that the store no longer has as running loses its Job;
- nothing of another run, controller or user in the namespace is touched;
- at its end no Job, Secret or policy is left, or all of them are, as `on_stop` says.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Coroutine
from typing import Any

import msgspec

from whippletree.control.attempt import to_the_end
from whippletree.control.controller import called_off
from whippletree.control.grading import Grader
from whippletree.control.kubernetes import network
from whippletree.control.kubernetes.attempts import ClusterAttempt, ClusterParts
from whippletree.control.kubernetes.cleaning import clean
from whippletree.control.kubernetes.decide import Action, Create, End, Expire, Lose, Observed, Remove, Stage, Wanted, decide
from whippletree.control.kubernetes.labels import PHASE, selector
from whippletree.control.kubernetes.mirror import Mirror
from whippletree.control.kubernetes.objects import Job, observe
from whippletree.control.kubernetes.outcome import JobEnd, lost, read_end, read_expiry
from whippletree.control.policy import decide as try_again
from whippletree.control.policy import row_of
from whippletree.errors import ClusterError
from whippletree.kubernetes.client import JOBS, PODS
from whippletree.kubernetes.objects import Pod
from whippletree.protocols import AttemptOutcome
from whippletree.types import Attempt, Cause, CauseClass

log = logging.getLogger(__name__)

BUSY_SECONDS = 0.05  # shortest time between two decisions: events that come together are answered together
REVIEW_SECONDS = 5.0  # how often the store is asked whether running attempts still run there

Key = tuple[str, int]  # rollout, attempt


class Reconciler:
    """Keeps up to `config.jobs` attempts under way in the cluster until told to stop."""

    def __init__(self, parts: ClusterParts, worker: str, stop_seconds: float, grader: Grader) -> None:
        """`worker` names this controller in the store; what an earlier one of that name left running is adopted."""
        self.parts = parts
        self._grader = grader
        self.config = parts.config
        self.finished = 0
        self.started = asyncio.Event()  # set once an earlier reconciler's leftovers are dealt with
        self.wanted: dict[Key, Wanted] = {}
        self._prefix = f"{worker}/"
        self._worker = f"{self._prefix}kubernetes-{os.getpid()}-{secrets.token_hex(3)}"
        self._stop_seconds = stop_seconds
        self._attempts: dict[Key, ClusterAttempt] = {}
        self._tasks: dict[asyncio.Task[None], tuple[str, object]] = {}
        self._busy: set[object] = set()  # uids and pods that a request is under way for
        self._observed: tuple[tuple[int, int], list[Observed]] = ((-1, -1), [])
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        chosen, resync = selector(parts.owner), self.config.resync_seconds
        self.jobs: Mirror[Job] = Mirror(parts.cluster, JOBS, Job, chosen, self._wake.set, resync=resync)
        self.pods: Mirror[Pod] = Mirror(parts.cluster, PODS, Pod, chosen, self._wake.set, resync=resync)

    def stop(self) -> None:
        """Claim no more, and wind down."""
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        """Until `stop`. Raises ClusterError or ConfigurationError when it cannot start, StoreError when the store fails."""
        await self._grader.open()
        await network.apply(self.parts.cluster, network.policies(self.config.network, self.parts.owner, self.parts.gateway_url))
        mirrors = [asyncio.create_task(self.jobs.run()), asyncio.create_task(self.pods.run())]
        grading = asyncio.create_task(self._grader.run(), name="rubrics")
        grading.add_done_callback(lambda _: self._wake.set())
        try:
            await self._first_lists(mirrors)
            if self.jobs.listed and self.pods.listed:  # not so if it was stopped before it knew anything
                await self._adopt()
                self.started.set()
                await self._reconcile([*mirrors, grading])
        finally:
            self._stop.set()
            try:
                await self._wind_down()
                await called_off(grading)
            finally:
                for task in (grading, *mirrors, *self._tasks):
                    task.cancel()
                await asyncio.gather(grading, *mirrors, *self._tasks, return_exceptions=True)

    async def _first_lists(self, mirrors: list[asyncio.Task[None]]) -> None:
        """Wait for both, for a refusal, or for the request to stop."""
        synced = asyncio.create_task(self._synced())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([*mirrors, synced, stopped], return_when=asyncio.FIRST_COMPLETED)
            _raise_ended(mirrors)
        finally:
            synced.cancel()
            stopped.cancel()

    async def _synced(self) -> None:
        await self.jobs.synced.wait()
        await self.pods.synced.wait()

    async def _adopt(self) -> None:
        """Take over what an earlier controller of this name left running; what has no Job goes back to the queue."""
        store = self.parts.store
        there = {job.metadata.name: job for job in self.jobs.objects.values()}
        for rollout in await asyncio.to_thread(lambda: store.rollouts(states=("running",))):
            attempt = store.attempts(rollout.spec.rollout_id)[-1]
            if not attempt.worker.startswith(self._prefix):
                continue
            made = ClusterAttempt(self.parts, rollout.spec, attempt)
            if made.job in there:
                uid = there[made.job].metadata.uid
                self._want(made, "placed", uid=uid)
                self._start("key", None, self._ensure_key(made, uid))
            else:
                message = "its controller ended, and it has no Job"
                cause = Cause(cause=CauseClass.HOST_LOST, phase="boot", message=message, next_step="it is tried again")
                await self._write(AttemptOutcome(attempt=made.ended(cause), requeue=True))
        if self.wanted:
            log.info("%d Jobs of an earlier controller are adopted", len(self.wanted))

    async def _ensure_key(self, made: ClusterAttempt, uid: str) -> None:
        """An earlier controller may have ended between the Job and its Secret."""
        try:
            await made.give_key(None, uid)
        except ClusterError as error:
            log.warning("%s: its Secret cannot be made sure of: %s", made.job, error)

    # --- the loop ------------------------------------------------------------------------------------------------------

    async def _reconcile(self, beside: list[asyncio.Task[None]]) -> None:
        reviewed = time.monotonic()
        while not self._stop.is_set():
            self._wake.clear()
            _raise_ended(beside)
            self._reap()
            if time.monotonic() - reviewed > REVIEW_SECONDS:
                await self._review()
                reviewed = time.monotonic()
            await self._claim(self.config.jobs - len(self.wanted))
            self._step()
            await asyncio.sleep(min(BUSY_SECONDS, self.config.poll_seconds))
            await _wait(self._wake, self.config.poll_seconds)

    async def _claim(self, room: int) -> None:
        store = self.parts.store
        if room <= 0 or not store.rollouts(states=("queuing",), limit=1):
            return
        for attempt in await asyncio.wrap_future(store.claim(self._worker, room)):
            spec = store.rollout(attempt.rollout_id).spec
            self._want(ClusterAttempt(self.parts, spec, attempt), "new")

    async def _review(self) -> None:
        """Forget attempts that were cancelled or taken away in the store: their Jobs are orphans now."""
        store = self.parts.store
        running = await asyncio.to_thread(lambda: store.rollouts(states=("running",)))
        current = {(rollout.spec.rollout_id, rollout.attempt) for rollout in running}
        for key in [key for key, wanted in self.wanted.items() if key not in current and wanted.stage == "placed"]:
            log.info("%s attempt %d is no longer wanted: its Job is deleted", *key)
            self._forget(key)

    def _step(self) -> None:
        """Decide on what is known now, and start what was decided."""
        observed = self._observe()
        by_name = {job.name: job for job in observed}
        for key, wanted in self.wanted.items():
            job = by_name.get(wanted.job)
            if job is None and not wanted.seen and wanted.uid in self.jobs.gone:
                self._set(key, seen=True)
            elif job is not None and wanted.stage != "new" and wanted.uid in ("", job.uid):
                pod = wanted.pod or (job.pods[0] if job.pods else "")
                if (wanted.uid, wanted.pod, wanted.seen) != (job.uid, pod, True):
                    self.wanted[key] = msgspec.structs.replace(wanted, uid=job.uid, pod=pod, seen=True)
        listed = self.jobs.listed
        for action in decide(list(self.wanted.values()), observed, owner=self.parts.owner, listed=listed, now=time.time()):
            self._carry_out(action)
        self._close_setup()

    def _observe(self) -> list[Observed]:
        """What the mirrors have; worked out anew only when they changed."""
        changes = (self.jobs.changes, self.pods.changes)
        if self._observed[0] != changes:
            self._observed = (changes, observe(self.jobs.objects.values(), self.pods.objects.values()))
        return self._observed[1]

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Remove):
            if action.uid not in self._busy:
                self._start("remove", action.uid, self._remove(action))
            return
        key = (action.rollout_id, action.attempt)
        match action:
            case Create():
                self._set(key, stage="placing")
                self._start("place", None, self._place(key))
            case End():
                self._set(key, stage="ending")
                self._start("record", None, self._end(key, self.jobs.objects[action.uid]))
            case Expire():
                self._set(key, stage="ending")
                self._start("record", None, self._expire(key, action))
            case Lose():
                self._set(key, stage="ending")
                self._start("record", None, self._record(key, lost(), None, ()))

    def _start(self, kind: str, busy: object, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = (kind, busy)
        if busy is not None:
            self._busy.add(busy)
        task.add_done_callback(lambda _: self._wake.set())

    def _reap(self) -> None:
        """Forget tasks that ended; raise what one of them raised (the store refused a write)."""
        for task in [task for task in self._tasks if task.done()]:
            _, busy = self._tasks.pop(task)
            self._busy.discard(busy)
            task.result()

    def _want(self, made: ClusterAttempt, stage: Stage, uid: str = "") -> None:
        key = (made.spec.rollout_id, made.attempt.attempt)
        self._attempts[key] = made
        self.wanted[key] = Wanted(
            rollout_id=key[0],
            attempt=key[1],
            job=made.job,
            stage=stage,
            pending_seconds=self.config.pending_seconds,
            running_seconds=self.config.running_seconds,
            uid=uid,
        )

    def _set(self, key: Key, **changes: Any) -> None:
        self.wanted[key] = msgspec.structs.replace(self.wanted[key], **changes)

    def _forget(self, key: Key) -> None:
        self.wanted.pop(key, None)
        self._attempts.pop(key, None)

    # --- tasks ---------------------------------------------------------------------------------------------------------

    async def _place(self, key: Key) -> None:
        made = self._attempts[key]
        answer = await made.place()
        if isinstance(answer, Cause):
            self._set(key, stage="ending")
            await self._conclude(key, made.ended(answer))
        else:
            self._set(key, stage="placed", uid=answer, known_at=self.jobs.begun)

    async def _end(self, key: Key, job: Job) -> None:
        made = self._attempts[key]
        try:
            pods = await made.pods(job.metadata.uid)
        except ClusterError as error:
            self._not_now(key, error)
            return
        await self._record(key, read_end(job, pods, self.config.result_container), job, pods)

    async def _expire(self, key: Key, expire: Expire) -> None:
        made = self._attempts[key]
        try:
            pods = await made.pods(expire.uid)
        except ClusterError as error:
            self._not_now(key, error)
            return
        end = read_expiry(expire, self.config.pending_seconds, self.config.running_seconds)
        await self._record(key, end, self.jobs.objects.get(expire.uid), pods)

    def _not_now(self, key: Key, error: ClusterError) -> None:
        """An end that cannot be read is no end: it is decided anew."""
        log.warning("%s attempt %d: its pods cannot be listed: %s", *key, error)
        self._set(key, stage="placed")

    async def _record(self, key: Key, end: JobEnd, job: Job | None, pods: tuple[Pod, ...] | list[Pod]) -> None:
        await self._conclude(key, await self._attempts[key].close(end, job, pods))

    async def _conclude(self, key: Key, ended: Attempt) -> None:
        """Write the end. The pause before another try comes first: a kill in it changes nothing."""
        requeue = False
        if ended.cause is not None:
            row = row_of(ended.cause.cause, self.parts.control.on_limit(ended.cause.cause))
            decision = try_again(row, ended.attempt, self._attempts[key].spec.max_attempts)
            requeue = decision.requeue
            cause = ended.cause
            told = "tried again" if requeue else "failed"
            log.warning("%s attempt %d: %s in %s: %s; %s", *key, cause.cause, cause.phase, cause.message, told)
            await _wait(self._stop, decision.delay)
        await to_the_end(self._write(AttemptOutcome(attempt=ended, requeue=requeue)))
        self._forget(key)

    async def _write(self, outcome: AttemptOutcome) -> None:
        self.finished += await self._grader.end(outcome)

    async def _remove(self, action: Remove) -> None:
        try:
            await self.parts.cluster.delete(JOBS, action.name, action.uid)
        except ClusterError as error:
            log.warning("%s is not deleted yet: %s", action.name, error)
            await _wait(self._stop, 1.0)

    def _close_setup(self) -> None:
        """Take the label of the set-up phase from pods whose set-up container has ended."""
        if not self.config.setup_container:
            return
        for pod in self.pods.objects.values():
            name = pod.metadata.name
            if (
                (pod.metadata.labels or {}).get(PHASE) == "setup"
                and name not in self._busy
                and pod.ended(self.config.setup_container)
            ):
                self._start("label", name, self._label(name))

    async def _label(self, pod: str) -> None:
        try:
            await self.parts.cluster.label(PODS, pod, {PHASE: "agent"})
        except ClusterError as error:
            if error.status != 404:
                log.warning("%s stays in its set-up phase: %s", pod, error)

    # --- the end -------------------------------------------------------------------------------------------------------

    async def _wind_down(self) -> None:
        """Finish what is being recorded; then leave the rest to the next controller, or put it back and clean up."""
        recording = [task for task, (kind, _) in self._tasks.items() if kind == "record"]
        placing = [task for task, (kind, _) in self._tasks.items() if kind == "place"]
        if self.config.on_stop == "remove":
            for task in placing:
                task.cancel()
        if recording or placing:
            done, _ = await asyncio.wait([*recording, *placing], timeout=self._stop_seconds)
            for task in done:
                if not task.cancelled() and (error := task.exception()) is not None:
                    log.error("the end of an attempt was not written: %s", error)
        if self.config.on_stop == "leave":
            return
        cause = Cause(
            cause=CauseClass.CANCELLED, phase="agent", message="the controller was stopped", next_step="it is tried again"
        )
        for key in list(self.wanted):
            await self._write(AttemptOutcome(attempt=self._attempts[key].ended(cause), requeue=True))
            self._forget(key)
        if self.started.is_set():
            await clean(self.parts.cluster, self.parts.owner)


def _raise_ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
