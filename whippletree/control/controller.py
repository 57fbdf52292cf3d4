"""The local reconciler: takes queuing rollouts from the store, runs each as an attempt, writes how it ended.

    store ── claim ──► attempt task (boot … cleanup) ── decide ──► finish: succeeded | failed | queuing again
      ▲                                                               │
      └───────────────────────────────────────────────────────────────┘
    The loop waits for: a task's end, the next look (5 to 50 ms), or the request to stop. It never waits for one attempt. Each
    look also finds what somebody has cancelled: its attempt is stopped, in whatever phase it is.

Invariants (tests/control/test_controller.py):
- every claimed attempt is finished exactly once; one that was fenced off meanwhile changes nothing;
- an attempt whose rollout was cancelled is stopped and cleaned up, and then its place is free;
- a controller that starts re-queues what a killed one left running, and removes its sandboxes;
- one controller per run directory: a second one is refused while the first lives;
- at its end every rollout that it claimed is finished, queuing again or handed over to be scored (grading.py), and no sandbox
  is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from whippletree import sandboxes
from whippletree.control.ahead import ahead
from whippletree.control.attempt import AttemptRun, Parts, to_the_end
from whippletree.control.grading import Grader
from whippletree.control.policy import decide, row_of
from whippletree.control.rubrics.scoring import Record
from whippletree.errors import ConfigurationError
from whippletree.files import locked
from whippletree.protocols import AttemptOutcome
from whippletree.store.cancelling import Cancellations
from whippletree.types import Attempt, Cause
from whippletree.watchdog import LoopWatch

log = logging.getLogger(__name__)

LOCK = "controller.lock"  # in the run directory
LOCK_SECONDS = 0.08
CUT_SECONDS = 1.0  # for the gateway to end the calls of an attempt that was cut short


class Controller:
    """Keeps up to `config.concurrency` attempts under way until told to stop."""

    def __init__(self, parts: Parts, worker: str = "local") -> None:
        """`worker` names this controller in the store; what an earlier one of that name left running is taken over."""
        self.parts = parts
        self.finished = 0
        self.watch = LoopWatch("the controller's event loop")
        self.started = asyncio.Event()  # set once an earlier controller's leftovers are dealt with
        self.concurrency = min([parts.config.concurrency, *(pool.capacity for pool in parts.launchers.pools)])
        self._prefix = f"{worker}/"
        self._worker = f"{self._prefix}{os.getpid()}-{secrets.token_hex(3)}"
        self._running: dict[asyncio.Task[None], AttemptRun] = {}
        self._stop = asyncio.Event()
        record = Record(store=parts.store, read=parts.imaging.read, place=parts.place)
        self._grader = Grader(record, parts.config.rubrics, parts.directory, worker=worker)
        self._cancellations = Cancellations(parts.store)

    @property
    def running(self) -> int:
        """Attempts under way."""
        return len(self._running)

    def stop(self) -> None:
        """Claim no more; attempts whose agent still works go back to the queue, the others end."""
        self._stop.set()

    async def run(self) -> None:
        """Until `stop`. Raises StoreError when outcomes cannot be written."""
        with only_one(self.parts.directory / LOCK):
            await self._grader.open()
            await self._take_over()
            self.started.set()
            grading = asyncio.create_task(self._grader.run(), name="rubrics")
            async with self.watch.watching():
                try:
                    async with ahead(self.parts.imaging, self.parts.store):
                        await self._reconcile(grading)
                finally:
                    await self._wind_down()
                    await called_off(grading)
        log.info("controller ended; the longest lag of its event loop was %.3f s", self.watch.worst)

    async def _take_over(self) -> None:
        left = await asyncio.wrap_future(self.parts.store.release_worker(self._prefix))
        if left:
            log.info("%d attempts that an earlier controller left are queued again", len(left))
        await asyncio.to_thread(sandboxes.clean, self.parts.sandbox, self.parts.prefix)

    async def _reconcile(self, grading: asyncio.Task[None]) -> None:
        config = self.parts.config
        pause = config.busy_poll_seconds
        stopped = asyncio.create_task(self._stop.wait())
        try:
            while not self._stop.is_set():
                claimed = await self._claim(self._room())
                for attempt in claimed:
                    self._launch(attempt)
                pause = config.busy_poll_seconds if claimed else min(pause * 2, config.idle_poll_seconds)
                self._stop_cancelled()
                await asyncio.wait({stopped, grading, *self._running}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                self._reap()
                if grading.done():
                    grading.result()
        finally:
            stopped.cancel()

    def _room(self) -> int:
        return self.concurrency - len(self._running)

    async def _claim(self, room: int) -> list[Attempt]:
        """Looking is a cheap read; only a look that found something is followed by a write."""
        store = self.parts.store
        if room <= 0 or not store.rollouts(states=("queuing",), limit=1):
            return []
        return await asyncio.wrap_future(store.claim(self._worker, room))

    def _stop_cancelled(self) -> None:
        """End the attempts whose rollouts were called off since the last look."""
        ended = self._cancellations.look() if self._running else []
        gone = {(rollout.spec.rollout_id, rollout.attempt) for rollout in ended}
        if gone:
            self._cancel(dict(self._running), lambda run: (run.spec.rollout_id, run.attempt.attempt) in gone)

    def _launch(self, attempt: Attempt) -> None:
        spec = self.parts.store.rollout(attempt.rollout_id).spec
        run = AttemptRun(self.parts, spec, attempt)
        self._running[asyncio.create_task(self._see_through(run), name=f"attempt-{attempt.rollout_id}")] = run

    def _reap(self) -> None:
        """Forget tasks that ended; raise what one of them raised (the store refused its outcome)."""
        for task in [task for task in self._running if task.done()]:
            del self._running[task]
            task.result()

    async def _see_through(self, run: AttemptRun) -> None:
        ended = await run.run()
        requeue = False
        phases = {phase.name for phase in ended.phases}
        if "agent" in phases and "seal" not in phases:  # cut short: its model calls are not to go on
            await to_the_end(self._cut_calls(ended))
        if ended.cause is not None:
            row = row_of(ended.cause.cause, self.parts.config.on_limit(ended.cause.cause))
            decision = decide(row, ended.attempt, run.spec.max_attempts)
            requeue = decision.requeue
            log.warning("%s: %s", _describe(ended, ended.cause), "tried again" if requeue else "failed")
            await self._pause(decision.delay)
        await to_the_end(self._write(AttemptOutcome(attempt=ended, requeue=requeue)))

    async def _cut_calls(self, ended: Attempt) -> None:
        """The gateway ends what this attempt has in flight. Where it does not answer, its clients' end ends that too."""
        await self.parts.sealer.seal(ended.rollout_id, ended.attempt, CUT_SECONDS, crashed=False)

    async def _write(self, outcome: AttemptOutcome) -> None:
        self.finished += await self._grader.end(outcome)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return

    async def _wind_down(self) -> None:
        """Bring every attempt to its end: those that may be interrupted at once, all of them when the time is over."""
        self._stop.set()
        limit = self.parts.config.stop_seconds
        tasks = dict(self._running)
        self._cancel(tasks, lambda run: run.interruptible)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=limit)
            self._cancel({task: tasks[task] for task in late}, lambda run: True)
            await asyncio.gather(*tasks, return_exceptions=True)
        for task, run in tasks.items():
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("%s attempt %d: its end was not written: %s", run.spec.rollout_id, run.attempt.attempt, error)
        self._running.clear()
        await asyncio.wrap_future(self.parts.store.release_worker(self._worker))  # tasks that were stopped before they began
        await asyncio.to_thread(sandboxes.clean, self.parts.sandbox, self.parts.prefix)

    @staticmethod
    def _cancel(tasks: dict[asyncio.Task[None], AttemptRun], which: Callable[[AttemptRun], bool]) -> None:
        for task, run in tasks.items():
            if which(run):
                task.cancel()


async def called_off(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end. Raises what it has raised."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _describe(attempt: Attempt, cause: Cause) -> str:
    return f"{attempt.rollout_id} attempt {attempt.attempt}: {cause.cause} in {cause.phase or 'queue'}: {cause.message}"


def absent(directory: Path) -> str:
    """That no controller works on this run directory, in words; "" where one does."""
    try:
        with (directory / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return f"no controller was ever started on {directory}"
    except OSError:
        return ""  # somebody holds it
    return f"no controller works on {directory}: it has ended, or was killed"


def only_one(path: Path) -> AbstractContextManager[None]:
    """Hold the run directory's lock. Raises ConfigurationError where another holds it, not only to see whether it is held."""
    refused = ConfigurationError(f"another controller works on {path.parent}", "stop it, or choose another run")
    return locked(path, refused, seconds=LOCK_SECONDS)
