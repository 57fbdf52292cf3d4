"""Decisions of the control room: retries, blame and back-off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.control.policy import (
    NEVER_AGAIN,
    AgentEnd,
    RestartPolicy,
    Restarts,
    SealReport,
    decide,
    judge,
)
from whippletree.protocols import HarnessResult
from whippletree.types import Call, CallTimes, Cause, CauseClass, Sampling

ANSWERED = SealReport()
OTHERS = [cause for cause in CauseClass if cause not in NEVER_AGAIN and cause is not CauseClass.CANCELLED]


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


@pytest.mark.parametrize("cause", sorted(NEVER_AGAIN))
def test_a_faulty_task_or_configuration_is_never_tried_again(cause: CauseClass) -> None:
    assert not decide(cause, 1, 10).requeue


@given(attempt=st.integers(1, 50), limit=st.integers(1, 50))
def test_a_cancelled_attempt_is_always_tried_again(attempt: int, limit: int) -> None:
    decision = decide(CauseClass.CANCELLED, attempt, limit)
    assert decision.requeue and decision.delay == 0.0


@given(cause=st.sampled_from(OTHERS), attempt=st.integers(1, 50), limit=st.integers(1, 50))
def test_other_causes_are_tried_again_until_the_attempts_are_used_up(cause: CauseClass, attempt: int, limit: int) -> None:
    decision = decide(cause, attempt, limit)
    assert decision.requeue == (attempt < limit)
    assert 0.0 <= decision.delay <= 8.0


def test_faults_that_may_lie_outside_the_sandbox_are_given_growing_time() -> None:
    delays = [decide(CauseClass.GATEWAY, attempt, 99).delay for attempt in range(1, 9)]
    assert delays == sorted(delays) and delays[0] > 0.0 and delays[-1] == 8.0
    assert decide(CauseClass.HOST_LOST, 1, 3).delay == 0.0


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
    ]
    for agent, seal, calls, expected in cases:
        cause = judge(agent, seal, calls)
        assert cause is not None and cause.cause is expected and cause.message


def test_a_cause_that_the_launcher_found_stands() -> None:
    lost = Cause(cause=CauseClass.HOST_LOST, phase="agent", message="gone")
    assert judge(AgentEnd(result=HarnessResult(exit_status="x"), cause=lost), ANSWERED, [call()]) is lost


def test_a_late_gateway_does_not_spoil_a_finished_attempt() -> None:
    assert judge(end(), SealReport(gateway_trouble="restarting"), [call()]) is None


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
