"""The durable record."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import Literal, Protocol, runtime_checkable

from whippletree.types import (
    Attempt,
    Call,
    CallPayload,
    Event,
    EventPage,
    Float32,
    PayloadKey,
    QueueReport,
    Rollout,
    RolloutPage,
    RolloutSpec,
    RolloutState,
    StepRecord,
    Struct,
)


class PayloadStore(Protocol):
    """Token-sized data, written once and released once trained."""

    def put(self, payloads: Sequence[CallPayload]) -> list[PayloadKey]:
        """Append; what is returned survives the kill of any process, and a power cut as the store's settings say."""
        ...

    def flush(self) -> None:
        """Make everything that was put safe against a power cut."""
        ...

    def get(self, key: PayloadKey) -> CallPayload:
        """Raises StoreError when the payload is gone or damaged (checksum)."""
        ...

    def segments(self) -> list[str]:
        """Segments that nobody writes any more."""
        ...

    def remove(self, segments: Collection[str]) -> list[str]:
        """Nothing of these segments is wanted any more. Returns those that are gone now; the others are asked for again."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


class AttemptOutcome(Struct):
    """How an attempt ended: exactly one of `result` with a reward, or `cause`. `requeue`: try the rollout again.

    Example: AttemptOutcome(result=VerifierResult(reward=1.0), exit_status="Submitted", phases=(...))
    """

    attempt: Attempt
    requeue: bool = False


@runtime_checkable
class Store(Protocol):
    """The durable record. Each write returns a Future that is resolved once the write is durable (group commit); each read
    sees every write whose Future was resolved. Safe from any thread; several processes may open one store."""

    def create_rollouts(self, specs: Sequence[RolloutSpec]) -> Future[None]:
        """Idempotent by rollout_id. Raises ConflictError if the id exists with another spec."""
        ...

    def rollout(self, rollout_id: str) -> Rollout:
        """Raises StoreError when unknown."""
        ...

    def rollouts(
        self,
        *,
        states: Iterable[RolloutState] = (),
        purpose: str = "",
        group_id: str = "",
        step: int | None = None,
        updated_after: float = 0.0,
        limit: int = 0,
    ) -> list[Rollout]:
        """Rollouts that match every given filter, oldest first."""
        ...

    def page(
        self,
        *,
        states: Iterable[RolloutState] = (),
        source: str = "",
        group_id: str = "",
        purpose: str = "",
        order: Literal["created", "updated"] = "created",
        after: str = "",
        limit: int = 100,
    ) -> RolloutPage:
        """Rollouts that match every given filter, in the order of creation or of their last change, behind the cursor `after`
        (a page's `next`). Whoever follows the order of changes to its end and asks again later misses none."""
        ...

    def begin(self, rollout_id: str, worker: str, lease_seconds: float = 0.0) -> Future[Attempt]:
        """Move one queuing rollout to running. Idempotent by worker. With a lease the attempt is lost once nobody renews it for
        so many seconds of the store's clock. Raises ConflictError."""
        ...

    def renew(self, rollout_id: str, attempt: int, *, at_least: float = 0.0) -> Future[Attempt | None]:
        """Begin the attempt's lease anew, if it has one, for `at_least` seconds where that is more. None, and nothing changes,
        where that attempt is not under way."""
        ...

    def end_lapsed(self, longest: float = math.inf) -> list[Attempt]:
        """End the attempts whose lease has run out, of those with a lease of at most `longest` seconds: cause HOST_LOST, and
        the failure table decides whether their rollouts wait for another attempt. Each is ended once, whoever asks. Blocks."""
        ...

    def cancel(self, rollout_ids: Sequence[str], reason: str) -> Future[list[Rollout]]:
        """Fail queuing and running rollouts with the cause "cancelled", their attempts sealed; what they still report changes
        nothing. Those that have ended stay as they are. Returns all of them."""
        ...

    def pause_queue(self, paused: bool) -> Future[None]:
        """While the queue is paused `claim` gives nothing. What runs goes on."""
        ...

    def queue(self) -> QueueReport:
        """Every source's rollouts by state."""
        ...

    def open_session(self, spec: RolloutSpec) -> Future[Attempt]:
        """A rollout that nobody claims: created running, with attempt 1, for a program that is captured from outside.
        Idempotent by rollout_id. Raises ConflictError if the id exists with another spec."""
        ...

    def claim(self, worker: str, limit: int) -> Future[list[Attempt]]:
        """Move up to `limit` queuing rollouts to running, each with a new attempt: evaluation before training, the source with
        the least under way before others, then oldest first. External ones are never claimed."""
        ...

    def release_worker(self, worker_prefix: str) -> Future[list[Attempt]]:
        """Put every running rollout of these workers back to queuing: their attempts are sealed and can no longer report."""
        ...

    def seal(self, rollout_id: str, attempt: int) -> Future[bool]:
        """No further call of this attempt is accepted. False if that attempt is not the current one."""
        ...

    def finish(self, outcome: AttemptOutcome) -> Future[bool]:
        """Close an attempt: succeeded with a reward, failed with a cause, or back to queuing. False if it was fenced off."""
        ...

    def hand_over(self, attempt: Attempt, worker: str) -> Future[bool]:
        """Give an attempt that is under way, with all that is known of it, to another worker, which will finish it: it is
        sealed, and its lease, if any, is over. False if it was fenced off."""
        ...

    def held_by(self, worker: str) -> list[Attempt]:
        """The attempts under way that this worker owns, oldest rollout first."""
        ...

    def attempts(self, rollout_id: str) -> list[Attempt]:
        """All attempts, oldest first."""
        ...

    def append_events(self, events: Sequence[Event]) -> Future[None]:
        """Idempotent by event_id."""
        ...

    def events(self, rollout_id: str) -> list[Event]:
        """Events of one rollout, oldest first."""
        ...

    def event_page(self, rollout_id: str, *, kind: str = "", after: int = 0, limit: int = 100) -> EventPage:
        """Events of one rollout in the order in which they were written, behind the place `after`."""
        ...

    def record_call(self, call: Call, payload: CallPayload) -> Future[Call]:
        """Durable when resolved; the returned call carries its payload key. Raises FencedError if the attempt is sealed."""
        ...

    def mark_delivered(self, call_id: str) -> Future[None]:
        """The harness has the whole reply."""
        ...

    def calls(self, rollout_id: str, attempt: int) -> list[Call]:
        """Calls of one attempt by index."""
        ...

    def payload(self, call: Call) -> CallPayload:
        """Raises StoreError when it was released."""
        ...

    def record_column(self, call: Call, name: str, values: Float32) -> Future[None]:
        """Keep one more column of a recorded call, a number for each sampled token. The first one of a name stays. Raises
        StoreError when the call is unknown."""
        ...

    def columns(self, rollout_id: str, attempt: int, name: str) -> dict[str, Float32]:
        """The columns of that name, by call_id, of an attempt's calls that have one. Raises StoreError when released."""
        ...

    def release(self, rollout_ids: Sequence[str]) -> int:
        """Give up the payloads of these rollouts; their records stay. Blocks; returns how many payloads were given up."""
        ...

    def plan_step(self, record: StepRecord) -> Future[None]:
        """Assign rollouts to an update. Raises ConflictError when one of them already belongs to another step."""
        ...

    def commit_step(self, step: int, checkpoint: str) -> Future[None]:
        """The update's checkpoint is on disk."""
        ...

    def steps(self) -> list[StepRecord]:
        """All steps in order."""
        ...

    def set_meta(self, key: str, value: str) -> Future[None]:
        """Keep one small value of the run, overwriting an earlier one."""
        ...

    def meta(self, key: str) -> str | None:
        """The value of `key`, or None."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...
