"""The rules of the rollout API, over the store and the gateway. No HTTP.

    create ─► queuing ─► update "running" ─► update "succeeded" (reward) | "failed" (cause) | "queuing" (cause: once more)
                 │              └── no sign of life for its lease ─► queuing again, or failed (cause "host_lost")
                 └──────── cancel ────────────────► failed (cause "cancelled"); what is under way is ended

What blocks: the store; an update that ends an attempt, until its calls are recorded; a listing that waits, at most
`LONGEST_WAIT`.
Invariants (tests/gateway/test_rollout_api.py):
- each operation, repeated, changes nothing more; what an older attempt says changes nothing and is told so (409, "fenced");
- an update to the state that a rollout has is accepted, one that its state machine has not is refused with the reason (409);
- a reward was sent: with the update, or by events of the same attempt (rollout_api/rewards.py);
- no call of an attempt is accepted once the attempt has ended or its rollout was cancelled;
- whatever an attempt sends renews its lease; a lease that ran out ends the attempt once, however many gateways look
  (tests/gateway/test_rollout_api_leases.py).
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from whippletree.errors import ConflictError, RequestError, StoreError
from whippletree.gateway.keys import AttemptKey
from whippletree.gateway.rollout_api.rewards import check_event, result_of
from whippletree.gateway.rollout_api.wire import (
    CancelRollouts,
    CreateRollouts,
    EventDraft,
    EventReceipt,
    Lease,
    RolloutDraft,
    RolloutUpdate,
)
from whippletree.gateway.service import CANCEL_LIMIT, Gateway
from whippletree.protocols import AttemptOutcome, Store
from whippletree.store.cancelling import Cancellations
from whippletree.store.transitions import cancelled, ran_out
from whippletree.traces import Node, load_trace
from whippletree.types import (
    Attempt,
    Cause,
    Event,
    EventPage,
    QueueReport,
    Rollout,
    RolloutPage,
    RolloutSpec,
    VerifierResult,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_WAIT = 60.0  # seconds
LOOKS = (0.02, 0.05, 0.1, 0.25)  # seconds between looks of a listing that waits; the last one again and again
PHASE = "agent"  # in which an external rollout fails: it has no other
MODEL_REQUEST = "model_request"  # kind of the events that stand for calls
WORKER = "api"  # who runs a rollout, where nobody says so
FOLLOW_PAUSE = 0.5  # seconds
LEASE_PAUSE = 1.0  # seconds between looks for leases that ran out
TICK, STANDSTILL = 0.25, 1.0  # seconds between signs of the event loop's own life, and without one: then nobody was heard
CANCEL_PAGE = 1000  # rollouts of a group that are cancelled at once


class RolloutService:
    """What the routes do."""

    def __init__(self, gateway: Gateway, store: Store) -> None:
        self._gateway = gateway
        self._store = store
        self._since = self._ticked = time.monotonic()

    async def create(self, wanted: CreateRollouts) -> list[Rollout]:
        """All of them or none; those that are there already stay as they are. Raises ConflictError, RequestError (400)."""
        specs = [_spec(draft) for draft in wanted.rollouts]
        await asyncio.wrap_future(self._store.create_rollouts(specs))
        return [await self.get(spec.rollout_id) for spec in specs]

    async def get(self, rollout_id: str, wait: float = 0.0) -> Rollout:
        """A rollout; with `wait` once it has ended, or after so many seconds. Raises RequestError (404)."""
        return await self._look(lambda: self._found(rollout_id), lambda rollout: rollout.terminal, wait)

    async def page(self, wait: float = 0.0, **filters: Any) -> RolloutPage:
        """See protocols.Store.page; with `wait` once it holds something, or after so many seconds.

        Raises RequestError (400).
        """
        try:
            return await self._look(lambda: self._store.page(**filters), lambda page: bool(page.rollouts), wait)
        except StoreError as error:
            raise RequestError(error.cause, error.next_step) from error

    async def update(self, rollout_id: str, update: RolloutUpdate) -> Rollout:
        """Move a rollout. Raises RequestError (400, 404, 409) and ConflictError."""
        rollout = await self.get(rollout_id)
        if update.status == "running":
            return await self._begin(rollout, update)
        if update.lease_seconds is not None:
            raise RequestError("only an attempt that begins gets a lease", "leave lease_seconds out")
        attempt = update.attempt or rollout.attempt
        if rollout.state == update.status == "queuing" and update.attempt is None:
            return rollout
        lost = rollout.state != "running" and await self._lost(rollout_id, attempt) is not None
        if attempt != rollout.attempt or attempt == 0 or lost:
            raise await self._fenced(rollout, attempt)
        report = await self._report(rollout, attempt, update)
        if rollout.state == "running":
            closing = self._gateway.config.seal_limit + 2 * CANCEL_LIMIT  # its lease must not run out meanwhile
            await asyncio.wrap_future(self._store.renew(rollout_id, attempt, at_least=closing))
            await self._gateway.seal(AttemptKey(rollout_id=rollout_id, attempt=attempt), None)
        outcome = AttemptOutcome(attempt=report, requeue=update.status == "queuing")
        kept = await asyncio.wrap_future(self._store.finish(outcome))
        rollout = await self.get(rollout_id)
        if not kept:
            lost = await self._lost(rollout_id, attempt) is not None
            if lost or (rollout.state, rollout.attempt) != (update.status, attempt):  # else it was said before
                raise await self._fenced(rollout, attempt)
        return rollout

    async def _begin(self, rollout: Rollout, update: RolloutUpdate) -> Rollout:
        name, named = rollout.spec.rollout_id, update.attempt
        if named is not None:
            running = rollout.state == "running"
            over = named < rollout.attempt or (named == rollout.attempt and rollout.state == "queuing")
            if over or (running and named != rollout.attempt) or ran_out(rollout.cause):
                raise await self._fenced(rollout, named)
        if rollout.state != "running" or update.worker:
            given = update.lease_seconds
            lease = self._gateway.config.lease_seconds if given is None else given
            begun = await asyncio.wrap_future(self._store.begin(name, update.worker or WORKER, lease))
            named = begun.attempt
        if rollout.state == "running":
            await self._alive(rollout, named or rollout.attempt)
        return await self.get(name)

    async def renew(self, rollout_id: str, attempt: int) -> Lease:
        """A sign of life of an attempt. Raises RequestError (404; 409 where it is not under way)."""
        current = await self._alive(await self.get(rollout_id), attempt)
        return Lease(rollout_id=rollout_id, attempt=attempt, lease_seconds=current.lease_seconds)

    async def _alive(self, rollout: Rollout, attempt: int) -> Attempt:
        current = await asyncio.wrap_future(self._store.renew(rollout.spec.rollout_id, attempt))
        if current is None:
            raise await self._fenced(await self.get(rollout.spec.rollout_id), attempt)
        return current

    async def _report(self, rollout: Rollout, attempt: int, update: RolloutUpdate) -> Attempt:
        report = Attempt(rollout_id=rollout.spec.rollout_id, attempt=attempt, started=0.0, finished=time.time())
        if update.status == "succeeded":
            return msgspec.structs.replace(report, result=await self._reward(rollout, attempt, update))
        if update.reward is not None:
            raise RequestError("a rollout that did not succeed has no reward", "leave the reward out")
        message = update.message or f"reported by {update.worker or WORKER}"
        return msgspec.structs.replace(report, cause=Cause(cause=update.cause, phase=PHASE, message=message))

    async def _reward(self, rollout: Rollout, attempt: int, update: RolloutUpdate) -> VerifierResult:
        if update.reward is None and rollout.state == "succeeded" and rollout.reward is not None:  # said before
            return VerifierResult(reward=rollout.reward)
        events = await asyncio.to_thread(self._store.events, rollout.spec.rollout_id)
        found = result_of(update, [event for event in events if event.attempt == attempt])
        if found is None:
            raise RequestError(
                f"no reward was sent for attempt {attempt} of {rollout.spec.rollout_id}",
                "send it with the update, or a reward event before it; where there is none, report failed",
                status=409,
                code="no_reward",
            )
        return found

    async def append(self, rollout_id: str, attempt: int, draft: EventDraft) -> EventReceipt:
        """Write an event of the current attempt; the same id again changes nothing. Raises RequestError (400, 404, 409)."""
        rollout = await self.get(rollout_id)
        if draft.kind == MODEL_REQUEST:
            raise RequestError("calls are recorded by the gateway alone", "choose another kind")
        check_event(draft.kind, draft.data)
        event_id = f"{rollout_id}/{attempt}/{draft.event_id or secrets.token_hex(8)}"
        if attempt != rollout.attempt or attempt == 0 or ran_out(rollout.cause) or cancelled(rollout):
            raise await self._fenced(rollout, attempt)
        if not rollout.terminal:  # what comes after the end is kept too
            await self._alive(rollout, attempt)
        event = Event(
            event_id=event_id,
            rollout_id=rollout_id,
            attempt=attempt,
            time=draft.time or time.time(),
            kind=draft.kind,
            data=draft.data,
        )
        await asyncio.wrap_future(self._store.append_events([event]))
        return EventReceipt(event_id=event_id)

    async def events(self, rollout_id: str, *, kind: str, after: int, limit: int, wait: float) -> EventPage:
        """A page of events; with `wait` once it holds something. Of the kind "model_request": the recorded calls of the last
        attempt, which are no stored events. Raises RequestError (404; 410 where their tokens were given up)."""
        await self.get(rollout_id)

        def read() -> EventPage:
            if kind == MODEL_REQUEST:
                return self._calls(rollout_id, after, limit)
            return self._store.event_page(rollout_id, kind=kind, after=after, limit=limit)

        return await self._look(read, lambda page: bool(page.events), wait)

    def _calls(self, rollout_id: str, after: int, limit: int) -> EventPage:
        """Calls number `after` and up, each with everything that it was fed and sampled."""
        try:
            nodes = load_trace(self._store, self._store.rollout(rollout_id)).nodes
        except StoreError as error:
            raise RequestError(error.cause, error.next_step, status=410, code="released") from error
        kept = nodes[after : after + limit]
        last = after + len(kept)
        return EventPage(events=tuple(map(_model_request, kept)), next=last, more=last < len(nodes))

    async def cancel(self, wanted: CancelRollouts) -> list[Rollout]:
        """Call rollouts off. Raises RequestError (404)."""
        ids = list(wanted.rollout_ids)
        if wanted.group_id:
            page = await asyncio.to_thread(self._store.page, group_id=wanted.group_id, limit=CANCEL_PAGE)
            while True:
                ids += [rollout.spec.rollout_id for rollout in page.rollouts]
                if not page.more:
                    break
                page = await asyncio.to_thread(self._store.page, group_id=wanted.group_id, after=page.next, limit=CANCEL_PAGE)
        ids = list(dict.fromkeys(ids))
        for rollout_id in ids:
            await self.get(rollout_id)
        ended = await asyncio.wrap_future(self._store.cancel(ids, wanted.reason))
        await self._end_calls(ended)
        return ended

    async def keep_leases(self) -> None:
        """Renew the leases of attempts whose calls are under way here, and end those that have run out anywhere, until
        cancelled. A lease that could not be renewed, because no gateway was there or this one stood still, has its whole time
        again."""
        ticking = asyncio.create_task(self._tick())
        try:
            while True:
                await asyncio.sleep(max(LOOKS[1], min(LEASE_PAUSE, self._gateway.shortest_lease / 8)))
                try:
                    await self._keep_leases()
                except StoreError as error:
                    logger.warning("leases could not be looked after: %s", error)
        finally:
            ticking.cancel()

    async def _keep_leases(self) -> None:
        await self._gateway.renew_leases()
        for lost in await asyncio.to_thread(self._store.end_lapsed, self._served()):
            logger.warning("%s attempt %d: %s", lost.rollout_id, lost.attempt, lost.cause and lost.cause.message)
            key = AttemptKey(rollout_id=lost.rollout_id, attempt=lost.attempt)
            if self._gateway.serves(key):
                await self._gateway.seal(key, 0.0)

    def _served(self) -> float:
        """Seconds since which whoever spoke was heard. It begins anew when the event loop stood still, with its machine or
        alone; a slow store is no standstill."""
        now = time.monotonic()
        if now > self._ticked + STANDSTILL:
            self._since = now
        self._ticked = now
        return now - self._since

    async def _tick(self) -> None:
        while True:
            self._served()
            await asyncio.sleep(TICK)

    async def follow(self) -> None:
        """End the calls of rollouts that are cancelled anywhere, until this is cancelled itself."""
        cancellations = Cancellations(self._store)
        while True:
            await asyncio.sleep(FOLLOW_PAUSE)
            try:
                if not self._gateway.busy:
                    continue
                await self._end_calls(await asyncio.to_thread(cancellations.look))
            except StoreError as error:
                logger.warning("cancelled rollouts could not be looked for: %s", error)

    async def _end_calls(self, rollouts: Sequence[Rollout]) -> None:
        keys = (AttemptKey(rollout_id=item.spec.rollout_id, attempt=item.attempt) for item in rollouts if cancelled(item))
        await asyncio.gather(*(self._gateway.seal(key, 0.0) for key in keys if self._gateway.serves(key)))

    async def pause(self, paused: bool) -> QueueReport:
        """Begin nothing new, or go on."""
        await asyncio.wrap_future(self._store.pause_queue(paused))
        return await self.queue()

    async def queue(self) -> QueueReport:
        """Every source's rollouts by state."""
        return await asyncio.to_thread(self._store.queue)

    # --- within ----------------------------------------------------------------------------------------------------------

    async def _lost(self, rollout_id: str, attempt: int) -> Cause | None:
        """The cause of an attempt whose lease ran out."""
        attempts = await asyncio.to_thread(self._store.attempts, rollout_id)
        return next((item.cause for item in attempts if item.attempt == attempt and ran_out(item.cause)), None)

    async def _fenced(self, rollout: Rollout, attempt: int) -> RequestError:
        """Why nothing counts that this attempt says."""
        name = rollout.spec.rollout_id
        if (lost := await self._lost(name, attempt)) is not None:
            cause = f"attempt {attempt} of {name} is over: {lost.message}"
        elif rollout.state == "queuing" or rollout.attempt == 0:
            cause = f"attempt {attempt} of {name} is not under way: the rollout waits for its next attempt"
        elif rollout.attempt != attempt:
            cause = f"attempt {attempt} of {name} is not the current one, {rollout.attempt} is"
        elif cancelled(rollout):
            cause = f"attempt {attempt} of {name} was cancelled"
        else:
            cause = f"attempt {attempt} of {name} has ended: the rollout has {rollout.state}"
        return RequestError(cause, "stop: nothing that it reports changes anything", status=409, code="fenced")

    def _found(self, rollout_id: str) -> Rollout:
        try:
            return self._store.rollout(rollout_id)
        except StoreError as error:
            raise RequestError(error.cause, error.next_step, status=404, code="not_found") from error

    async def _look(self, read: Callable[[], T], enough: Callable[[T], bool], wait: float) -> T:
        """Read until it is enough, at most `wait` seconds."""
        deadline = time.monotonic() + min(wait, LONGEST_WAIT)
        looks = 0
        while True:
            found = await asyncio.to_thread(read)
            left = deadline - time.monotonic()
            if enough(found) or left <= 0:
                return found
            await asyncio.sleep(min(left, LOOKS[min(looks, len(LOOKS) - 1)]))
            looks += 1


def _spec(draft: RolloutDraft) -> RolloutSpec:
    rollout_id = draft.rollout_id or f"api-{secrets.token_hex(8)}"
    if not 0.0 <= draft.sampling.temperature < math.inf or draft.sampling.max_tokens < 1:
        raise RequestError("sampling has a temperature below 0 or a max_tokens below 1", "leave it out for the defaults")
    return RolloutSpec(
        rollout_id=rollout_id,
        group_id=draft.group_id or rollout_id,
        source=draft.source,
        task_id=draft.task_id or rollout_id,
        task_path=draft.task_path,
        harness=draft.harness,
        purpose=draft.purpose,
        step=draft.step,
        sampling=draft.sampling,
        max_attempts=draft.max_attempts,
        labels=draft.labels,
        input=draft.input,
    )


def _model_request(node: Node) -> Event:
    """A call as an event."""
    call = node.call
    return Event(
        event_id=call.call_id,
        rollout_id=call.rollout_id,
        attempt=call.attempt,
        time=call.times.finished,
        kind=MODEL_REQUEST,
        data={
            "prompt_token_ids": node.prompt_ids.tolist(),
            "response_token_ids": node.sampled_ids.tolist(),
            "logprobs": node.logprobs.tolist(),
            "policy_versions": node.versions.tolist(),
            "finish_reason": call.finish_reason,
            "role": node.role,
            "parent": node.parent,
            "delivered": node.delivered,
            "not_trainable": node.excluded,
        },
    )


def conflict(error: ConflictError) -> RequestError:
    """A refused transition, with its reason."""
    return RequestError(error.cause, error.next_step, status=409, code="conflict")
