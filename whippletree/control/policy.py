"""Decisions of the control room: pure functions and a pure state machine over plain values.

Invariants (tests/control/test_policy.py):
- every cause has its line in one table, and retries, grading and the reward's validity come from nowhere else;
- a faulty task or configuration is never tried again; a cancelled attempt is always tried again and costs no try;
- no cause is tried again once the rollout has used its attempts;
- back-off delays grow up to their maximum, and a process that keeps dying runs out of restarts;
- a harness that did its job, or ran out of time or steps, is verified; every other end is a failure with one cause.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Literal

from whippletree.configuration import Config
from whippletree.errors import AlignmentError, ConfigurationError, ImageError, SandboxError, TaskError, WhippletreeError
from whippletree.protocols import HarnessResult
from whippletree.types import Call, Cause, CauseClass, Struct

UNAUTHORISED = re.compile(r"\b401\b|unauthori[sz]ed|authentication|api.key", re.IGNORECASE)
MESSAGE_LIMIT = 2000  # characters of a failure's text that are kept on the record


class Row(Struct):
    """One line of the failure table: what follows when an attempt has this cause.

    `setting`: the value of the setting that chooses among the lines of one cause ("" where there is one line). `retry`: never,
    until the rollout's attempts are used up, or always and at no cost of an attempt. `waits`: before the next try, because what
    failed may lie outside the sandbox and needs time. `graded`: the verifier is asked all the same. `reward_valid`: its reward
    may be trained on.

    Example: Row(cause=CauseClass.TASK, what="the task cannot be used", retry="never")
    """

    cause: CauseClass
    what: str
    retry: Literal["never", "attempts", "always"]
    setting: str = ""
    waits: bool = False
    graded: bool = False
    reward_valid: bool = False


OnLimit = Literal["score", "mask", "retry"]
LIMITS = {CauseClass.AGENT_TIMEOUT: "control.agent_timeout", CauseClass.BUDGET: "control.out_of_budget"}


def _limit(cause: CauseClass, what: str) -> tuple[Row, ...]:
    return (
        Row(cause=cause, setting="score", what=what, retry="never", graded=True, reward_valid=True),
        Row(cause=cause, setting="mask", what=what, retry="never", graded=True),
        Row(cause=cause, setting="retry", what=what, retry="attempts"),
    )


TABLE: tuple[Row, ...] = (
    Row(cause=CauseClass.HARNESS, what="the agent crashed, or could not be launched", retry="attempts", waits=True),
    *_limit(CauseClass.AGENT_TIMEOUT, "the agent was stopped at its time limit"),
    *_limit(CauseClass.BUDGET, "the agent used up its steps, tokens or cost"),
    Row(cause=CauseClass.NO_CALLS, what="the agent ended without one model reply", retry="attempts", waits=True),
    Row(cause=CauseClass.IMAGE, what="its image could not be built, fetched or unpacked", retry="attempts", waits=True),
    Row(cause=CauseClass.SETUP, what="set-up, a step's script or a healthcheck failed", retry="attempts"),
    Row(cause=CauseClass.SANDBOX, what="the sandbox did not start, or died", retry="attempts"),
    Row(cause=CauseClass.HOST_LOST, what="the pool host, or the controller, went away", retry="attempts"),
    Row(cause=CauseClass.ENGINE, what="no engine answered", retry="attempts", waits=True),
    Row(cause=CauseClass.GATEWAY, what="the gateway did not answer", retry="attempts", waits=True),
    Row(cause=CauseClass.CAPTURE, what="the recorded calls do not line up", retry="attempts"),
    Row(cause=CauseClass.VERIFIER, what="the tests crashed, overran or gave no usable score", retry="attempts"),
    Row(cause=CauseClass.DEADLINE, what="another phase, or the attempt as a whole, overran", retry="attempts"),
    Row(cause=CauseClass.TASK, what="the task cannot be used", retry="never"),
    Row(cause=CauseClass.CONFIGURATION, what="a setting is wrong", retry="never"),
    Row(cause=CauseClass.CANCELLED, what="the attempt was stopped from outside", retry="always"),
)
_ROWS = {(row.cause, row.setting): row for row in TABLE}


def row_of(cause: CauseClass, setting: str = "") -> Row:
    """The line of a cause. `setting`: what the cause's setting says, for those in LIMITS; any other has one line."""
    return _ROWS[cause, setting if cause in LIMITS else ""]


def failure_table() -> str:
    """The table as docs/control.md shows it, in Markdown."""
    lines = ["| cause | what happened | tried again | graded | reward valid |", "|---|---|---|---|---|"]
    tried = {"never": "no", "attempts": "up to `max_attempts`", "always": "always, at no cost"}
    for row in TABLE:
        name = f'`{row.cause}`, `{LIMITS[row.cause]} = "{row.setting}"`' if row.setting else f"`{row.cause}`"
        again = tried[row.retry] + (", after a wait" if row.waits else "")
        yes = {True: "yes", False: "no"}
        lines.append(f"| {name} | {row.what} | {again} | {yes[row.graded]} | {yes[row.reward_valid]} |")
    return "\n".join(lines) + "\n"


class Decision(Struct):
    """What to do with a failed attempt. `delay`: seconds to wait before its rollout is queued again.

    Example: Decision(requeue=True, delay=0.5)
    """

    requeue: bool
    delay: float = 0.0


def decide(row: Row, attempt: int, max_attempts: int) -> Decision:
    """Try again or fail. `attempt` counts from 1."""
    if row.retry == "always":
        return Decision(requeue=True)
    if row.retry == "never" or attempt >= max_attempts:
        return Decision(requeue=False)
    return Decision(requeue=True, delay=min(0.25 * 2**attempt, 8.0) if row.waits else 0.0)


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

    Example: SealReport(gateway_trouble="the gateway at 127.0.0.1:8100 is not there: connection refused")
    """

    gateway_trouble: str = ""
    engine_trouble: str = ""
    refused_keys: int = 0


def judge(end: AgentEnd, seal: SealReport, calls: Sequence[Call]) -> Cause | None:
    """The cause that makes an attempt invalid, or None when it can be verified.

    A harness that crashed because its model calls failed is not blamed for it.
    """
    if end.cause is not None:
        return end.cause
    said = end.result.message[-MESSAGE_LIMIT:]
    engines = seal.engine_trouble or next((f"call {call.call_id}: {call.error}" for call in reversed(calls) if call.error), "")
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
    if not any(call.sampled_tokens for call in calls):
        status = "its time ran out" if end.timed_out else f"it ended with {end.result.exit_status!r}"
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

    limit: int = 5
    """Restarts allowed within the window; 0 means never."""
    window_seconds: float = 60.0
    """A process that stayed up this long has its restarts forgotten."""
    first_delay: float = 0.1
    """Seconds before the first restart; each further one waits twice as long."""
    max_delay: float = 5.0
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
