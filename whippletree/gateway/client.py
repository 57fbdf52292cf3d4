"""The gateway's control routes, for the controller, the learner and operators. Blocking methods, and `..._async` twins.

Invariants (tests/gateway/test_gateway_client.py, test_gateway_sessions.py):
- any rollout id reaches the gateway unchanged;
- opening a session is tried again under the same id, so that it opens one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from whippletree.gateway.caller import Caller, query_of
from whippletree.gateway.wire import (
    GatewayStatus,
    HoldReport,
    RolloutReport,
    SealReport,
    SessionEnd,
    SessionOpened,
    SessionRequest,
    SessionState,
)
from whippletree.types import CauseClass


class GatewayControl:
    """`url` is the gateway's root, for example http://127.0.0.1:8000; `key` is keys.control_key of the run's secret.

    Thread-safe: every request has its own connection.
    """

    def __init__(self, url: str, key: str, *, patience: float = 15.0, wait: float = 600.0) -> None:
        """`patience`: seconds to wait for a gateway that is not there. `wait`: seconds that an answer may take."""
        self._caller = Caller(url, key, patience=patience, wait=wait)

    def hold(self, limit: float | None = None, abort: bool = False) -> HoldReport:
        """Stop admitting calls; waits until none is in flight, at most `limit` seconds (None: the gateway's own limit).

        `abort`: end what still runs then; it goes on from its sampled ids after the release.
        """
        path = "/control/hold" + _query(limit=limit, abort=1 if abort else None)
        return self._caller.call("POST", path, HoldReport, limit=limit)

    def release(self) -> HoldReport:
        """Admit calls again."""
        return self._caller.call("POST", "/control/release", HoldReport)

    def seal(self, rollout_id: str, attempt: int, limit: float | None = None) -> SealReport:
        """No further call of this attempt; calls in flight are recorded, or cancelled after `limit` seconds."""
        path = f"/control/attempts/{quote(rollout_id, safe='')}/{attempt}/seal"
        return self._caller.call("POST", path + _query(limit=limit), SealReport, limit=limit)

    def status(self) -> GatewayStatus:
        """What the gateway is doing."""
        return self._caller.call("GET", "/control/status", GatewayStatus, limit=0.0)  # one that stands still is not there

    # --- captured sessions -----------------------------------------------------------------------------------------------

    def open_session(self, request: SessionRequest | None = None) -> SessionOpened:
        """Begin to capture a program that somebody else starts."""
        wanted = request or SessionRequest()
        if not wanted.session_id:
            wanted = msgspec.structs.replace(wanted, session_id=f"capture-{secrets.token_hex(8)}")
        return self._caller.call("POST", "/sessions", SessionOpened, body=wanted)

    def rollout(self, rollout_id: str, *, settle: float | None = None, samples: bool = False) -> RolloutReport:
        """A rollout's last attempt once its record stands still, or after `settle` seconds (None: the gateway's own limit)."""
        path = f"/sessions/{quote(rollout_id, safe='')}/rollout"
        query = _query(settle=settle, samples=1 if samples else None, format="msgpack")
        return self._caller.call("GET", path + query, RolloutReport, limit=settle)

    def finish_session(self, session_id: str, reward: float, scores: Mapping[str, float] | None = None) -> SessionState:
        """Seal a session and give it its reward."""
        return self._end(session_id, SessionEnd(reward=reward, scores=dict(scores or {})))

    def fail_session(self, session_id: str, error: str, cause: CauseClass = CauseClass.HARNESS) -> SessionState:
        """Seal a session that failed: it gets no reward. `cause` says whose fault it was."""
        return self._end(session_id, SessionEnd(error=error, cause=cause))

    def cancel_session(self, session_id: str) -> SessionState:
        """Seal a session that nobody wants any more. One that has ended stays as it is."""
        return self._caller.call("DELETE", f"/sessions/{quote(session_id, safe='')}", SessionState)

    def _end(self, session_id: str, end: SessionEnd) -> SessionState:
        return self._caller.call("POST", f"/sessions/{quote(session_id, safe='')}/finish", SessionState, body=end)

    # --- the same for coroutines -----------------------------------------------------------------------------------------

    async def hold_async(self, limit: float | None = None, abort: bool = False) -> HoldReport:
        """As `hold`."""
        return await asyncio.to_thread(self.hold, limit, abort)

    async def release_async(self) -> HoldReport:
        """As `release`."""
        return await asyncio.to_thread(self.release)

    async def seal_async(self, rollout_id: str, attempt: int, limit: float | None = None) -> SealReport:
        """As `seal`."""
        return await asyncio.to_thread(self.seal, rollout_id, attempt, limit)

    async def status_async(self) -> GatewayStatus:
        """As `status`."""
        return await asyncio.to_thread(self.status)

    async def open_session_async(self, request: SessionRequest | None = None) -> SessionOpened:
        """As `open_session`."""
        return await asyncio.to_thread(self.open_session, request)

    async def rollout_async(self, rollout_id: str, *, settle: float | None = None, samples: bool = False) -> RolloutReport:
        """As `rollout`."""
        return await asyncio.to_thread(self.rollout, rollout_id, settle=settle, samples=samples)

    async def finish_session_async(
        self, session_id: str, reward: float, scores: Mapping[str, float] | None = None
    ) -> SessionState:
        """As `finish_session`."""
        return await asyncio.to_thread(self.finish_session, session_id, reward, scores)

    async def fail_session_async(self, session_id: str, error: str, cause: CauseClass = CauseClass.HARNESS) -> SessionState:
        """As `fail_session`."""
        return await asyncio.to_thread(self.fail_session, session_id, error, cause)

    async def cancel_session_async(self, session_id: str) -> SessionState:
        """As `cancel_session`."""
        return await asyncio.to_thread(self.cancel_session, session_id)


def _query(**options: float | str | None) -> str:
    return query_of(options.items())
