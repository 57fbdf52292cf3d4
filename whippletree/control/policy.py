"""Decisions of the control room: pure functions and a pure state machine over plain values.

Invariants (tests/control/test_policy.py):
- back-off delays grow up to their maximum, and a process that keeps dying runs out of restarts;
- a harness that did its job, or ran out of time or steps, is verified; every other end is a failure with one cause; so is any
  end while no engine answers, however the harness puts it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from whippletree.configuration import Amount, Config, Natural
from whippletree.errors import AlignmentError, ConfigurationError, ImageError, SandboxError, TaskError, WhippletreeError
from whippletree.protocols import HarnessResult
from whippletree.store.failures import LIMITS, TABLE, Decision, OnLimit, Row, decide, failure_table, row_of
from whippletree.types import Call, Cause, CauseClass, Struct

__all__ = ["LIMITS", "TABLE", "Decision", "OnLimit", "Row", "decide", "failure_table", "row_of"]  # the failure table's

UNAUTHORISED = re.compile(r"\b401\b|unauthori[sz]ed|authentication|api.key", re.IGNORECASE)
MESSAGE_LIMIT = 2000  # characters of a failure's text that are kept on the record


_BY_ERROR: tuple[tuple[type[WhippletreeError], CauseClass], ...] = (
    (ImageError, CauseClass.IMAGE),
    (SandboxError, CauseClass.SANDBOX),
    (ConfigurationError, CauseClass.CONFIGURATION),
    (AlignmentError, CauseClass.CAPTURE),
)
_BY_PHASE = {
    "image": CauseClass.IMAGE,
    "boot": CauseClass.SANDBOX,
    "healthcheck": CauseClass.SETUP,
    "setup": CauseClass.SETUP,
    "agent": CauseClass.HARNESS,
    "seal": CauseClass.GATEWAY,
    "collect": CauseClass.SANDBOX,
    "verify": CauseClass.VERIFIER,
}


def blame(error: Exception, phase: str) -> CauseClass:
    """The cause of an error that ended a phase: what the error says of itself, or what the phase is about."""
    if isinstance(error, TaskError) and phase not in ("healthcheck", "setup"):
        return CauseClass.TASK
    return next((kind for type_, kind in _BY_ERROR if isinstance(error, type_)), _BY_PHASE.get(phase, CauseClass.SANDBOX))


class AgentEnd(Struct):
    """How the agent phase ended: the harness's own word, a time-out, or a cause found by the launcher.

    Example: AgentEnd(result=HarnessResult(exit_status="Submitted", steps=3))
    """

    result: HarnessResult
    timed_out: bool = False
    cause: Cause | None = None


class SealReport(Struct):
    """What is known once an attempt is sealed: how the gateway failed to answer at once, and, if the harness crashed, the
    errors of engines none of which answers. "" means no trouble. `refused_keys`: keys that the gateway has refused so far.
    `unanswered`: why the last call of the harness got no answer from any engine.

    Example: SealReport(gateway_trouble="the gateway at 127.0.0.1:8100 is not there: connection refused")
    """

    gateway_trouble: str = ""
    engine_trouble: str = ""
    refused_keys: int = 0
    unanswered: str = ""


def judge(end: AgentEnd, seal: SealReport, calls: Sequence[Call]) -> Cause | None:
    """The cause that makes an attempt invalid, or None when it can be verified.

    A harness that crashed because its model calls failed is not blamed for it. Nor is one that ended, or whose time ran out,
    while its last call had no answer: what it left is not all that the model would have done.
    """
    if end.cause is not None:
        return end.cause
    said = end.result.message[-MESSAGE_LIMIT:]
    engines = (
        seal.engine_trouble
        or seal.unanswered
        or next((f"call {call.call_id}: {call.error}" for call in reversed(calls) if call.error), "")
    )
    if end.result.crashed and seal.gateway_trouble:
        return _cause(
            CauseClass.GATEWAY, f"{seal.gateway_trouble}; the harness ended with: {said}", "look at the gateway's log"
        )
    if end.result.crashed and engines:
        return _cause(CauseClass.ENGINE, f"{engines}; the harness ended with: {said}", "look at the engine's log")
    if seal.refused_keys and not calls and (not end.result.crashed or UNAUTHORISED.search(said)):
        return _cause(
            CauseClass.CONFIGURATION,
            f"no call came with this attempt's key; the gateway has refused {seal.refused_keys} others. It said: {said}",
            "look whether the harness or a script around it replaces the API key that it is given",
        )
    if end.result.crashed:
        return _cause(CauseClass.HARNESS, said or "the harness crashed without a message", "look at the attempt's agent.log")
    status = "its time ran out" if end.timed_out else f"it ended with {end.result.exit_status!r}"
    if seal.unanswered:
        return _cause(
            CauseClass.ENGINE, f"no engine answered its last call: {seal.unanswered}; {status}", "look at the engine's log"
        )
    if not any(call.sampled_tokens for call in calls):
        return _cause(
            CauseClass.NO_CALLS,
            f"the harness got no model reply; {status}: {said}",
            "check that its base URL and key are passed on, and the gateway's status",
        )
    return None


def cut_short(end: AgentEnd, seconds: float) -> Cause | None:
    """Why the agent was stopped before its own end, if it was: its time (`seconds`) or its budget was over."""
    if end.timed_out or end.result.ran_out == "time":
        return _cause(
            CauseClass.AGENT_TIMEOUT, f"the agent was stopped at its limit of {seconds:g} s", "raise the task's limit"
        )
    if end.result.ran_out == "budget":
        return _cause(CauseClass.BUDGET, f"the agent ended with {end.result.exit_status}", "raise the harness's limits")
    return None


def _cause(kind: CauseClass, message: str, next_step: str = "") -> Cause:
    return Cause(cause=kind, phase="agent", message=message.strip(" :"), next_step=next_step)


class RestartPolicy(Config):
    """When a process that died is started again."""

    limit: Natural = 5
    """Restarts allowed within the window; 0 means never."""
    window_seconds: Amount = 60.0
    """A process that stayed up this long has its restarts forgotten."""
    first_delay: Amount = 0.1
    """Seconds before the first restart; each further one waits twice as long."""
    max_delay: Amount = 5.0
    """Longest wait between two restarts, in seconds."""


class Restarts:
    """State machine of one process's restarts. Times are seconds of any steady clock."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self._deaths: deque[float] = deque()

    def next_delay(self, now: float) -> float | None:
        """Record a death at `now`: seconds to wait before the next start, or None when the restarts are used up."""
        while self._deaths and now - self._deaths[0] > self.policy.window_seconds:
            self._deaths.popleft()
        if len(self._deaths) >= self.policy.limit:
            return None
        self._deaths.append(now)
        return min(self.policy.first_delay * 2.0 ** (len(self._deaths) - 1), self.policy.max_delay)
