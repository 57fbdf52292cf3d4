"""Captured sessions without HTTP: rollouts of programs that are started by somebody else.

    open ──► running (an attempt, a key) ──calls──► finish(reward | error) | cancel | nobody called for `session_ttl` seconds
                                                       └──────────────── sealed, then succeeded or failed ──────────────┘

Invariants (tests/gateway/test_gateway_sessions.py):
- opening, finishing and cancelling are idempotent; a session that has ended otherwise is a ConflictError;
- only captured sessions can be ended here: a rollout that a controller runs is not;
- a session with a call under way does not expire.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable

from whippletree.errors import AlignmentError, ConflictError, RequestError, StoreError, WhippletreeError
from whippletree.gateway.keys import AttemptKey
from whippletree.gateway.service import Gateway
from whippletree.gateway.settling import Presence, settle
from whippletree.gateway.wire import RolloutReport, SealReport, SessionEnd, SessionRequest, SessionState
from whippletree.protocols import AttemptOutcome, Store
from whippletree.store.writes import SESSION_WORKER
from whippletree.traces import TracesConfig, build_samples, build_trace, load_trace, rollout_view
from whippletree.types import Attempt, Cause, CauseClass, Rollout, RolloutSpec, Sample, VerifierResult

logger = logging.getLogger(__name__)

LONGEST_ID = 200  # characters
SWEEP_PAUSE = 60.0  # seconds between sweeps, or a quarter of the time to live where that is less
CLIENT_PHASE = "agent"  # the phase in which a captured program fails: it has no other


class Sessions:
    """Captured sessions, and the view of any rollout."""

    def __init__(
        self,
        gateway: Gateway,
        store: Store,
        presence: Presence,
        owns: Callable[[str], bool] = lambda rollout_id: True,
        traces: TracesConfig | None = None,
    ) -> None:
        """`owns`: whether this process serves the rollout; with several workers each sweeps its own."""
        self._traces = traces or TracesConfig()
        self._gateway = gateway
        self._store = store
        self._presence = presence
        self._owns = owns
        self._due: dict[str, float] = {}  # running sessions → when they expire unless they call, seconds since the epoch

    async def open(self, wanted: SessionRequest) -> Attempt:
        """Begin a session, or find the one with this id. Raises ConflictError where the id is taken, RequestError (400)."""
        session_id = wanted.session_id or f"capture-{secrets.token_hex(8)}"
        if len(session_id) > LONGEST_ID:
            raise RequestError(f"session_id is longer than {LONGEST_ID} characters", "choose a shorter one")
        if not 0.0 <= wanted.sampling.temperature < math.inf or wanted.sampling.max_tokens < 1:
            raise RequestError("sampling has a temperature below 0 or a max_tokens below 1", "leave it out for the defaults")
        spec = RolloutSpec(
            rollout_id=session_id,
            group_id=wanted.group_id or session_id,
            source=wanted.source,
            task_id=wanted.task_id or session_id,
            task_path="",
            harness=wanted.harness,
            sampling=wanted.sampling,
            max_attempts=1,
            labels=wanted.labels,
        )
        return await asyncio.wrap_future(self._store.open_session(spec))

    async def finish(self, session_id: str, end: SessionEnd) -> SessionState:
        """Seal the session and close it with a reward or an error. Raises RequestError (400, 404) and ConflictError."""
        if (end.reward is None) == (not end.error):
            raise RequestError("give either a reward or an error", 'for example {"reward": 1.0}')
        if end.error:
            cause = Cause(cause=end.cause, phase=CLIENT_PHASE, message=end.error)
            return await self._close(session_id, None, cause)
        scores = end.scores or {"reward": end.reward or 0.0}
        return await self._close(session_id, VerifierResult(reward=end.reward, scores=scores), None)

    async def cancel(self, session_id: str) -> SessionState:
        """Seal the session and close it as cancelled. One that has ended already stays as it is."""
        rollout = await self._captured(session_id)
        if rollout.terminal:
            return await self._state(session_id, None)
        cause = Cause(cause=CauseClass.CANCELLED, phase=CLIENT_PHASE, message="the session was cancelled by whoever opened it")
        return await self._close(session_id, None, cause)

    async def report(self, rollout_id: str, limit: float, samples: bool) -> RolloutReport:
        """A rollout once it has settled, or after `limit` seconds. Raises RequestError (404)."""
        rollout = await find_rollout(self._store, rollout_id)
        key = AttemptKey(rollout_id=rollout_id, attempt=rollout.attempt)
        settled = await settle(self._presence, self._store, key, limit)
        return await asyncio.to_thread(self._read, rollout_id, settled, samples)

    async def sweep(self, now: float) -> list[str]:
        """End the sessions that were silent for too long; `now` in seconds since the epoch. Returns their ids."""
        cause = Cause(
            cause=CauseClass.DEADLINE,
            phase=CLIENT_PHASE,
            message=f"no call for {self._gateway.config.session_ttl:g} seconds",
            next_step="raise gateway.session_ttl if the program was alive",
        )
        ended = []
        for key in await asyncio.to_thread(self._silent, now):
            if self._presence.busy(key):  # it called in this moment
                continue
            try:
                await self._close(key.rollout_id, None, cause)
            except WhippletreeError as error:  # it ended otherwise in this moment, or the store is in trouble: later again
                logger.warning("session %r is silent, but could not be ended: %s", key.rollout_id, error)
            else:
                ended.append(key.rollout_id)
        return ended

    async def sweep_for_ever(self) -> None:
        """Sweep now and then, until cancelled."""
        pause = min(SWEEP_PAUSE, self._gateway.config.session_ttl / 4)
        while True:
            await asyncio.sleep(pause)
            try:
                await self.sweep(time.time())
            except StoreError as error:
                logger.warning("sessions could not be swept: %s", error)

    # --- within ----------------------------------------------------------------------------------------------------------

    async def _captured(self, session_id: str) -> Rollout:
        rollout = await find_rollout(self._store, session_id)
        attempts = await asyncio.to_thread(self._store.attempts, session_id)
        if not attempts or attempts[-1].worker != SESSION_WORKER:
            raise ConflictError(f"rollout {session_id!r} is no captured session", "its controller ends it")
        return rollout

    async def _close(self, session_id: str, result: VerifierResult | None, cause: Cause | None) -> SessionState:
        rollout = await self._captured(session_id)
        sealed = await self._gateway.seal(AttemptKey(rollout_id=session_id, attempt=rollout.attempt), None)
        report = Attempt(rollout_id=session_id, attempt=rollout.attempt, started=0.0, result=result, cause=cause)
        if not await asyncio.wrap_future(self._store.finish(AttemptOutcome(attempt=report))):
            raise ConflictError(f"session {session_id!r} has another attempt", "read its rollout")
        return await self._state(session_id, sealed)

    async def _state(self, session_id: str, sealed: SealReport | None) -> SessionState:
        rollout = await find_rollout(self._store, session_id)
        if sealed is None:
            calls = await asyncio.to_thread(self._store.calls, session_id, rollout.attempt)
            sealed = SealReport(sealed=True, calls=len(calls), delivered=sum(call.delivered for call in calls))
        return SessionState(
            session_id=session_id,
            attempt=rollout.attempt,
            state=rollout.state,
            reward=rollout.reward,
            calls=sealed.calls,
            delivered=sealed.delivered,
        )

    def _read(self, rollout_id: str, settled: bool, samples: bool) -> RolloutReport:
        """Blocks: reads the whole attempt."""
        rollout = self._store.rollout(rollout_id)
        attempts = self._store.attempts(rollout_id)
        sealed = rollout.terminal or bool(attempts and attempts[-1].sealed)
        problem, made = "", list[Sample]()
        try:
            trace = load_trace(self._store, rollout, self._traces)
            made = build_samples(trace, rollout.spec) if samples else []
        except (StoreError, AlignmentError) as error:
            calls = self._store.calls(rollout_id, rollout.attempt)
            trace, problem = build_trace(calls, [None] * len(calls)), str(error)
        view = rollout_view(rollout, trace, made)
        return RolloutReport(attempt=rollout.attempt, settled=settled, sealed=sealed, view=view, problem=problem)

    def _silent(self, now: float) -> list[AttemptKey]:
        """Running sessions of ours that nobody calls from any more. Blocks."""
        ttl = self._gateway.config.session_ttl
        running = {rollout.spec.rollout_id: rollout for rollout in self._store.rollouts(states=("running",))}
        self._due = {session_id: due for session_id, due in self._due.items() if session_id in running}
        silent = []
        for session_id, rollout in running.items():
            if not self._owns(session_id) or self._due.get(session_id, 0.0) > now:
                continue
            attempts = self._store.attempts(session_id)
            if not attempts or attempts[-1].worker != SESSION_WORKER:
                self._due[session_id] = math.inf  # a controller's, which has its own limits
                continue
            key = AttemptKey(rollout_id=session_id, attempt=rollout.attempt)
            if self._presence.busy(key):
                continue
            calls = self._store.calls(session_id, rollout.attempt)
            last = max([attempts[-1].started, *(call.times.finished for call in calls)])
            if last + ttl <= now:
                silent.append(key)
            else:
                self._due[session_id] = last + ttl
        return silent


async def find_rollout(store: Store, rollout_id: str) -> Rollout:
    """The rollout that a path names. Raises RequestError (404)."""
    try:
        return await asyncio.to_thread(store.rollout, rollout_id)
    except StoreError as error:
        raise RequestError(error.cause, error.next_step, status=404, code="not_found") from error
