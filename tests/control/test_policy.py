"""Decisions of the control room: retries, blame and back-off."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.control.policy import (
    LIMITS,
    TABLE,
    AgentEnd,
    RestartPolicy,
    Restarts,
    Row,
    SealReport,
    blame,
    cut_short,
    decide,
    failure_table,
    judge,
    row_of,
)
from whippletree.errors import (
    AlignmentError,
    ConfigurationError,
    HarnessError,
    SandboxError,
    TaskError,
    VerifierError,
)
from whippletree.protocols import HarnessResult
from whippletree.types import Call, CallTimes, Cause, CauseClass, Sampling

ANSWERED = SealReport()
NEVER = [row for row in TABLE if row.retry == "never"]
OTHERS = [row for row in TABLE if row.retry == "attempts"]


def call(sampled: int = 5, error: str = "") -> Call:
    return Call(
        call_id="c",
        rollout_id="r",
        attempt=1,
        index=0,
        digest="d",
        prompt_tokens=3,
        sampled_tokens=sampled,
        finish_reason="error" if error else "stop",
        times=CallTimes(received=1.0),
        sampling=Sampling(),
        error=error,
    )


def end(status: str = "Submitted", *, crashed: bool = False, message: str = "", timed_out: bool = False) -> AgentEnd:
    return AgentEnd(result=HarnessResult(exit_status=status, crashed=crashed, message=message), timed_out=timed_out)


def test_every_cause_has_its_line_and_only_limits_have_several() -> None:
    assert {row.cause for row in TABLE} == set(CauseClass)
    for cause in CauseClass:
        settings = [row.setting for row in TABLE if row.cause is cause]
        assert settings == (["score", "mask", "retry"] if cause in LIMITS else [""])
        for setting in settings:
            assert row_of(cause, setting).setting == setting
    assert row_of(CauseClass.TASK, "mask").cause is CauseClass.TASK  # the setting of a cause without one is nothing


def test_a_reward_is_valid_only_where_a_verifier_was_asked_and_then_nothing_is_tried_again() -> None:
    valid = [row for row in TABLE if row.reward_valid]
    assert {(row.cause, row.setting) for row in valid} == {(cause, "score") for cause in LIMITS}
    assert all(row.graded and row.retry == "never" for row in valid)
    masked = [(row.cause, row.setting) for row in TABLE if row.graded and not row.reward_valid]
    assert masked == [(cause, "mask") for cause in LIMITS]


def test_the_table_in_the_documentation_is_this_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "control.md").read_text(encoding="utf-8")
    assert failure_table() in page


@pytest.mark.parametrize("row", NEVER, ids=lambda row: f"{row.cause}-{row.setting}")
def test_a_faulty_task_or_configuration_is_never_tried_again(row: Row) -> None:
    assert not decide(row, 1, 10).requeue


def test_task_and_configuration_are_among_them() -> None:
    assert {CauseClass.TASK, CauseClass.CONFIGURATION} <= {row.cause for row in NEVER}


@given(attempt=st.integers(1, 50), limit=st.integers(1, 50))
def test_a_cancelled_attempt_is_always_tried_again(attempt: int, limit: int) -> None:
    decision = decide(row_of(CauseClass.CANCELLED), attempt, limit)
    assert decision.requeue and decision.delay == 0.0


@given(row=st.sampled_from(OTHERS), attempt=st.integers(1, 50), limit=st.integers(1, 50))
def test_other_causes_are_tried_again_until_the_attempts_are_used_up(row: Row, attempt: int, limit: int) -> None:
    decision = decide(row, attempt, limit)
    assert decision.requeue == (attempt < limit)
    assert 0.0 <= decision.delay <= 8.0


def test_faults_that_may_lie_outside_the_sandbox_are_given_growing_time() -> None:
    delays = [decide(row_of(CauseClass.GATEWAY), attempt, 99).delay for attempt in range(1, 9)]
    assert delays == sorted(delays) and delays[0] > 0.0 and delays[-1] == 8.0
    assert decide(row_of(CauseClass.HOST_LOST), 1, 3).delay == 0.0


@pytest.mark.parametrize("agent", [end(), end("LimitsExceeded"), end("deadline", timed_out=True)])
def test_a_harness_that_did_its_job_or_ran_out_of_time_or_steps_is_verified(agent: AgentEnd) -> None:
    assert judge(agent, ANSWERED, [call()]) is None


def test_each_other_end_has_one_cause() -> None:
    crashed = end("RuntimeError", crashed=True, message="boom")
    cases = [
        (crashed, ANSWERED, [call()], CauseClass.HARNESS),
        (crashed, SealReport(gateway_trouble="refused"), [call()], CauseClass.GATEWAY),
        (crashed, ANSWERED, [call(), call(0, "engine gone")], CauseClass.ENGINE),
        (crashed, SealReport(engine_trouble="embedded: connection refused"), [], CauseClass.ENGINE),
        (crashed, ANSWERED, [], CauseClass.HARNESS),
        (end(), ANSWERED, [], CauseClass.NO_CALLS),
        (end(), SealReport(refused_keys=3), [], CauseClass.CONFIGURATION),
        (end("APIError", crashed=True, message="Error 401: bad key"), SealReport(refused_keys=3), [], CauseClass.CONFIGURATION),
        (crashed, SealReport(refused_keys=3), [], CauseClass.HARNESS),
        (end("deadline", timed_out=True), ANSWERED, [call(0)], CauseClass.NO_CALLS),
        (end("deadline", timed_out=True), SealReport(unanswered="429"), [call()], CauseClass.ENGINE),
        (end("Done"), SealReport(unanswered="connection refused"), [call()], CauseClass.ENGINE),
        (end("LimitsExceeded"), SealReport(unanswered="connection refused"), [call()], CauseClass.ENGINE),
        (end(), SealReport(unanswered="connection refused"), [], CauseClass.ENGINE),
        (crashed, SealReport(unanswered="connection refused"), [call()], CauseClass.ENGINE),
    ]
    for agent, seal, calls, expected in cases:
        cause = judge(agent, seal, calls)
        assert cause is not None and cause.cause is expected and cause.message


def test_a_cause_that_the_launcher_found_stands() -> None:
    lost = Cause(cause=CauseClass.HOST_LOST, phase="agent", message="gone")
    assert judge(AgentEnd(result=HarnessResult(exit_status="x"), cause=lost), ANSWERED, [call()]) is lost


def test_a_late_gateway_does_not_spoil_a_finished_attempt() -> None:
    assert judge(end(), SealReport(gateway_trouble="restarting"), [call()]) is None


@pytest.mark.parametrize(
    ("error", "phase", "cause"),
    [
        (TaskError("x"), "boot", CauseClass.TASK),
        (TaskError("x"), "setup", CauseClass.SETUP),
        (TaskError("x"), "healthcheck", CauseClass.SETUP),
        (HarnessError("x"), "setup", CauseClass.SETUP),
        (HarnessError("x"), "agent", CauseClass.HARNESS),
        (SandboxError("x"), "setup", CauseClass.SANDBOX),
        (SandboxError("x"), "collect", CauseClass.SANDBOX),
        (ConfigurationError("x"), "setup", CauseClass.CONFIGURATION),
        (AlignmentError("x"), "seal", CauseClass.CAPTURE),
        (VerifierError("x"), "verify", CauseClass.VERIFIER),
        (KeyError("x"), "verify", CauseClass.VERIFIER),
        (KeyError("x"), "", CauseClass.SANDBOX),
    ],
)
def test_an_error_is_blamed_on_what_it_says_or_on_its_phase(error: Exception, phase: str, cause: CauseClass) -> None:
    assert blame(error, phase) is cause


def test_an_agent_that_was_stopped_is_told_from_one_that_ended() -> None:
    assert cut_short(end(), 3.0) is None
    stopped = [
        (end("deadline", timed_out=True), CauseClass.AGENT_TIMEOUT),
        (AgentEnd(result=HarnessResult(exit_status="TimeExceeded", ran_out="time")), CauseClass.AGENT_TIMEOUT),
        (AgentEnd(result=HarnessResult(exit_status="LimitsExceeded", ran_out="budget")), CauseClass.BUDGET),
    ]
    for agent, kind in stopped:
        cause = cut_short(agent, 3.0)
        assert cause is not None and (cause.cause, cause.phase) == (kind, "agent") and cause.next_step


def test_restarts_back_off_and_run_out() -> None:
    restarts = Restarts(RestartPolicy(limit=4, window_seconds=60.0, first_delay=0.5, max_delay=1.5))
    assert [restarts.next_delay(float(now)) for now in range(5)] == [0.5, 1.0, 1.5, 1.5, None]


def test_old_deaths_are_forgotten() -> None:
    restarts = Restarts(RestartPolicy(limit=1, window_seconds=10.0))
    assert restarts.next_delay(0.0) is not None
    assert restarts.next_delay(5.0) is None
    assert restarts.next_delay(10.1) is not None


def test_a_limit_of_zero_means_never() -> None:
    assert Restarts(RestartPolicy(limit=0)).next_delay(0.0) is None
