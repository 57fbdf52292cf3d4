"""A typed client of the rollout API, for trainers and controllers elsewhere. Blocking; run it on a thread from asyncio.

Every operation is idempotent and carries ids that this side has made, so that what is tried again happens once.
Invariants (tests/gateway/test_rollout_api_client.py):
- an answer that was lost on the way changes nothing: the call is made again, and happened once;
- what is refused raises RequestError with its status and code; "fenced" says that somebody else has taken over;
- `ended` gives every rollout that ends, once;
- while `keeping` an attempt its lease does not run out; where it is lost all the same, whoever works is told.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.caller import RETRIED, Caller, query_of
from whippletree.gateway.rollout_api.wire import (
    CancelRollouts,
    CreateRollouts,
    EventDraft,
    EventList,
    EventReceipt,
    Lease,
    ModelEndpoint,
    ModelEndpoints,
    QueueState,
    RolloutDraft,
    RolloutInfo,
    RolloutList,
    RolloutUpdate,
)
from whippletree.types import CauseClass, RolloutState

LOOK_SECONDS = 20.0  # that one look of `wait` and `ended` may take
ENDS: tuple[RolloutState, ...] = ("succeeded", "failed")


class Kept:
    """An attempt whose lease is being renewed."""

    def __init__(self) -> None:
        self.lost = threading.Event()
        self.over = threading.Event()
        self._reason: RequestError | None = None

    def lose(self, reason: RequestError) -> None:
        """Nothing that the attempt reports counts any more."""
        self._reason = reason
        self.lost.set()

    def check(self) -> None:
        """Raises RequestError (409) once the attempt is lost."""
        if self._reason is not None:
            raise RequestError(self._reason.cause, self._reason.next_step, status=self._reason.status, code=self._reason.code)


class RolloutClient:
    """`url`: the gateway's root; `key`: the run's control key. Thread-safe."""

    def __init__(self, url: str, key: str, *, patience: float = 15.0) -> None:
        """`patience`: seconds to wait for a gateway that is not there."""
        self._caller = Caller(url, key, patience=patience)

    def create(self, drafts: Sequence[RolloutDraft]) -> list[RolloutInfo]:
        """Create rollouts, all or none. Drafts without an id get one here."""
        named = [
            draft if draft.rollout_id else msgspec.structs.replace(draft, rollout_id=f"api-{secrets.token_hex(8)}")
            for draft in drafts
        ]
        reply = self._caller.call("POST", "/api/rollouts", RolloutList, body=CreateRollouts(rollouts=named))
        return list(reply.rollouts)

    def get(self, rollout_id: str) -> RolloutInfo:
        """One rollout as it stands."""
        return self._caller.call("GET", _path(rollout_id), RolloutInfo)

    def wait(self, rollout_id: str, seconds: float) -> RolloutInfo:
        """The rollout once it has ended, or as it stands after so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            path = _path(rollout_id) + query_of([("wait", min(left, LOOK_SECONDS))])
            found = self._caller.call("GET", path, RolloutInfo, limit=LOOK_SECONDS)
            if found.status in ENDS or left == 0.0:
                return found

    def page(
        self,
        *,
        states: Iterable[RolloutState] = (),
        source: str = "",
        group_id: str = "",
        purpose: str = "",
        order: str = "created",
        after: str = "",
        limit: int = 100,
        wait: float = 0.0,
    ) -> RolloutList:
        """A page of rollouts; with `wait` (seconds, at most 60) once it holds something."""
        query = [
            *(("state", state) for state in states),
            *(("source", source), ("group_id", group_id), ("purpose", purpose), ("order", order), ("after", after)),
            *(("limit", str(limit)), ("wait", wait or None)),
        ]
        return self._caller.call("GET", "/api/rollouts" + query_of(query), RolloutList, limit=wait)

    def pages(self, **filters: Any) -> Iterator[RolloutInfo]:
        """Every rollout that matches, page by page (see `page`)."""
        after = ""
        while True:
            found = self.page(after=after, **filters)
            yield from found.rollouts
            if not found.more:
                return
            after = found.next

    def ended(self, *, seconds: float, after: str = "", **filters: Any) -> Iterator[tuple[RolloutInfo, str]]:
        """Rollouts as they end, each with the cursor behind it; stops after `seconds` of waiting without one. With 0 it gives
        those that have ended."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            found = self.page(states=ENDS, order="updated", after=after, wait=min(left, LOOK_SECONDS), limit=1, **filters)
            if not found.rollouts and left == 0.0:
                return
            for rollout in found.rollouts:
                after = found.next
                yield rollout, after
                deadline = time.monotonic() + seconds  # what is done with one is no silence

    def begin(self, rollout_id: str, worker: str, *, lease_seconds: float | None = None) -> RolloutInfo:
        """Begin the next attempt of a rollout, for this worker alone, under a lease (None: the gateway's; 0: none). Raises
        RequestError (409) where another one has it."""
        return self._update(rollout_id, RolloutUpdate(status="running", worker=worker, lease_seconds=lease_seconds))

    def heartbeat(self, rollout_id: str, attempt: int) -> Lease:
        """A sign of life: the attempt's lease begins anew. Raises RequestError (409, "fenced") where it is lost."""
        return self._caller.call("POST", f"{_path(rollout_id)}/attempt/{attempt}/heartbeat", Lease)

    @contextmanager
    def keeping(self, rollout_id: str, attempt: int) -> Iterator[Kept]:
        """Send heartbeats, on a thread, while the body runs. Raises RequestError (409) where the attempt is lost already; if it
        is lost later, `lost` of what this gives is set, and its `check` raises."""
        kept = Kept()
        lease = self.heartbeat(rollout_id, attempt)
        if not lease.lease_seconds:
            yield kept
            return

        def beat() -> None:
            while not kept.over.wait(lease.lease_seconds / 4):
                try:
                    self.heartbeat(rollout_id, attempt)
                except RequestError as error:
                    if error.status not in RETRIED:  # a gateway that is not there now may be there in time
                        kept.lose(error)
                        return

        thread = threading.Thread(target=beat, name=f"lease-{rollout_id}", daemon=True)
        thread.start()
        try:
            yield kept
        finally:
            kept.over.set()
            thread.join()

    def succeed(
        self, rollout_id: str, attempt: int, reward: float | None = None, scores: Mapping[str, float] | None = None
    ) -> RolloutInfo:
        """The attempt succeeded, with a reward (None: that of its last reward event)."""
        update = RolloutUpdate(status="succeeded", attempt=attempt, reward=reward, scores=dict(scores or {}))
        return self._update(rollout_id, update)

    def fail(
        self, rollout_id: str, attempt: int, message: str, cause: CauseClass = CauseClass.HARNESS, *, again: bool = False
    ) -> RolloutInfo:
        """The attempt failed: no reward, and whose fault it was. `again`: the rollout waits for another attempt."""
        status: RolloutState = "queuing" if again else "failed"
        return self._update(rollout_id, RolloutUpdate(status=status, attempt=attempt, cause=cause, message=message))

    def event(self, rollout_id: str, attempt: int, kind: str, data: Mapping[str, Any], *, event_id: str = "") -> EventReceipt:
        """Write an event of the current attempt. Without an id it gets one here."""
        draft = EventDraft(kind=kind, data=dict(data), event_id=event_id or secrets.token_hex(8), time=time.time())
        return self._caller.call("POST", f"{_path(rollout_id)}/attempt/{attempt}/events", EventReceipt, body=draft)

    def events(self, rollout_id: str, *, kind: str = "", after: int = 0, limit: int = 100, wait: float = 0.0) -> EventList:
        """A page of a rollout's events, in the order in which they were written."""
        query = [("kind", kind), ("after", str(after)), ("limit", str(limit)), ("wait", wait or None)]
        return self._caller.call("GET", f"{_path(rollout_id)}/events" + query_of(query), EventList, limit=wait)

    def cancel(self, rollout_ids: Sequence[str] = (), *, group_id: str = "", reason: str = "called off") -> list[RolloutInfo]:
        """Call rollouts off: those that are named, and those of the group. Those that have ended stay as they are."""
        body = CancelRollouts(rollout_ids=list(rollout_ids), group_id=group_id, reason=reason)
        return list(self._caller.call("POST", "/api/rollouts/cancel", RolloutList, body=body).rollouts)

    def queue(self) -> QueueState:
        """Rollouts by source and state."""
        return self._caller.call("GET", "/api/queue", QueueState)

    def pause(self) -> QueueState:
        """Begin no rollout; what runs goes on."""
        return self._caller.call("POST", "/api/queue/pause", QueueState)

    def resume(self) -> QueueState:
        """Begin rollouts again."""
        return self._caller.call("POST", "/api/queue/resume", QueueState)

    def register_models(self, models: Sequence[ModelEndpoint]) -> list[ModelEndpoint]:
        """Add inference servers; all that are registered now."""
        return self._caller.call("POST", "/api/models", ModelEndpoints, body=ModelEndpoints(models=list(models))).models

    def remove_models(self) -> None:
        """Remove every inference server that was added."""
        self._caller.call("DELETE", "/api/models", ModelEndpoints)

    def _update(self, rollout_id: str, update: RolloutUpdate) -> RolloutInfo:
        return self._caller.call("PATCH", _path(rollout_id), RolloutInfo, body=update)


def _path(rollout_id: str) -> str:
    return f"/api/rollouts/{quote(rollout_id, safe='')}"
