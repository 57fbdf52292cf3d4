"""The failure table: what follows from each cause. Pure, and the only place that says so, for whoever ends an attempt.

Invariants (tests/control/test_policy.py):
- every cause has its line in one table, and retries, grading and the reward's validity come from nowhere else;
- a faulty task or configuration is never tried again; a cancelled attempt is always tried again and costs no try;
- no cause is tried again once the rollout has used its attempts; back-off delays grow up to their maximum.
"""

from __future__ import annotations

from typing import Literal

from whippletree.types import CauseClass, Struct


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
    Row(
        cause=CauseClass.HOST_LOST,
        what="the pool host went away, or the lease of an attempt that is run from outside ran out",
        retry="attempts",
    ),
    Row(cause=CauseClass.ENGINE, what="no engine answered", retry="attempts", waits=True),
    Row(cause=CauseClass.GATEWAY, what="the gateway did not answer", retry="attempts", waits=True),
    Row(cause=CauseClass.CAPTURE, what="the recorded calls do not line up", retry="attempts"),
    Row(cause=CauseClass.VERIFIER, what="the tests crashed, overran or gave no usable score", retry="attempts"),
    Row(cause=CauseClass.RUBRIC, what="a judge model gave no score that the reward needs", retry="never"),
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
