"""What the cluster says of a Job, and what it means for its attempt."""

from __future__ import annotations

import datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.control.kubernetes.decide import Expire
from whippletree.control.kubernetes.objects import Job
from whippletree.control.kubernetes.outcome import JobEnd, lost, phases, read_end, read_expiry
from whippletree.kubernetes.objects import Pod
from whippletree.types import CauseClass

T0 = "2026-01-01T00:00:00Z"
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": 1}
FAILED = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}


def job(status: dict) -> Job:
    return msgspec.convert({"metadata": {"name": "j", "creationTimestamp": T0}, "status": status}, Job)


def pod(*containers: tuple[str, dict], init: tuple[tuple[str, dict], ...] = (), **status: object) -> Pod:
    def listed(found: tuple[tuple[str, dict], ...]) -> list[dict]:
        return [{"name": name, "state": {"terminated": ended}} for name, ended in found]

    whole = {"initContainerStatuses": listed(init), "containerStatuses": listed(containers), **status}
    return msgspec.convert({"metadata": {"name": "p", "uid": "p"}, "status": whole}, Pod)


def cause_of(end: JobEnd) -> tuple[CauseClass, str]:
    found = end.agent.cause or (end.result and end.result.cause)
    assert found is not None and (end.result is None or end.result.reward is None)
    return found.cause, found.phase


def test_a_good_end_has_its_result():
    end = read_end(job(COMPLETE), [pod(("a", {"exitCode": 0, "message": '{"reward": 0.5, "scores": {"x": 1}}'}))], "")
    assert (end.result.reward, end.result.scores, end.agent.cause) == (0.5, {"x": 1.0}, None)


def test_scores_are_enough_and_what_is_not_the_pods_to_say_is_left_out():
    more = '"pending": ["style"], "expression": "9", "rubrics": [{"name": "style", "score": 1}]'
    ended = {"exitCode": 0, "message": f'{{"reward": null, "scores": {{"x": 1}}, {more}}}'}
    found = read_end(job(COMPLETE), [pod(("a", ended))], "").result
    assert (found.scores, found.pending, found.rubrics, found.expression) == ({"x": 1.0}, (), (), "")


def test_a_container_beside_that_was_stopped_by_force_is_no_failure():
    beside = pod(
        ("verifier", {"exitCode": 0, "message": '{"reward": 1}'}), init=(("proxy", {"exitCode": 137, "reason": "OOMKilled"}),)
    )
    assert read_end(job(COMPLETE), [beside], "verifier").result.reward == 1.0
    forced = pod(("verifier", {"exitCode": 137, "message": '{"reward": 1}'}))
    assert cause_of(read_end(job(COMPLETE), [forced], "verifier")) == (CauseClass.VERIFIER, "verify")


def test_the_result_is_the_named_containers_alone():
    two = pod(("agent", {"message": '{"reward": 1}'}), ("verifier", {"message": '{"reward": 0}'}))
    assert read_end(job(COMPLETE), [two], "verifier").result.reward == 0.0
    assert cause_of(read_end(job(COMPLETE), [two], "")) == (CauseClass.VERIFIER, "verify")  # whose would it be?
    assert cause_of(read_end(job(COMPLETE), [two], "judge")) == (CauseClass.VERIFIER, "verify")


@pytest.mark.parametrize(
    "message",
    [
        "",
        "  ",
        "1.0",
        "{",
        "[]",
        '{"reward": "1"}',
        '{"reward": null}',
        "{}",
        '{"reward": 1e999}',
        '{"reward": 1, "scores": {"x": 1e999}}',
    ],
)
def test_a_broken_result_is_the_verifiers_failure(message: str):
    end = read_end(job(COMPLETE), [pod(("a", {"exitCode": 0, "message": message}))], "")
    assert cause_of(end) == (CauseClass.VERIFIER, "verify")


def test_a_verifier_may_say_that_it_failed_itself():
    message = '{"reward": null, "cause": {"cause": "task", "phase": "verify", "message": "no tests"}}'
    end = read_end(job(COMPLETE), [pod(("a", {"message": message}))], "")
    assert cause_of(end) == (CauseClass.TASK, "verify")


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (pod(("a", {"exitCode": 137, "reason": "OOMKilled"})), (CauseClass.SANDBOX, "agent")),
        (pod(("a", {"exitCode": 128, "reason": "ContainerCannotRun"})), (CauseClass.SANDBOX, "boot")),
        (pod(phase="Failed", reason="Evicted"), (CauseClass.HOST_LOST, "agent")),
        (pod(phase="Failed", reason="OutOfcpu"), (CauseClass.HOST_LOST, "agent")),
        (pod(phase="Failed", reason="NodeLost"), (CauseClass.HOST_LOST, "agent")),
        (pod(phase="Failed", reason="DeadlineExceeded"), (CauseClass.DEADLINE, "agent")),
        (
            pod(("a", {"exitCode": 137}), phase="Failed", conditions=[{"type": "DisruptionTarget", "status": "True"}]),
            (CauseClass.HOST_LOST, "agent"),
        ),
        (pod(phase="Failed"), (CauseClass.HOST_LOST, "agent")),
    ],
    ids=["oom", "nostart", "evicted", "outof", "nodelost", "deadline", "disrupted", "unknown"],
)
def test_failures_of_the_machine(observed: Pod, expected: tuple[CauseClass, str]):
    assert cause_of(read_end(job(FAILED), [observed], "")) == expected


def test_the_clusters_own_deadline_needs_no_pod():
    late = {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]}
    assert cause_of(read_end(job(late), [], "")) == (CauseClass.DEADLINE, "agent")


def test_a_pod_that_is_gone_or_was_doubled_counts_for_nothing():
    good = pod(("a", {"message": '{"reward": 1}'}))
    assert cause_of(read_end(job(COMPLETE), [], "")) == (CauseClass.HOST_LOST, "agent")
    assert cause_of(read_end(job(COMPLETE), [good, good], "")) == (CauseClass.HOST_LOST, "agent")
    assert cause_of(lost()) == (CauseClass.HOST_LOST, "agent")


def test_a_container_that_fails_is_the_agent_unless_it_is_the_verifier():
    crashed = read_end(job(FAILED), [pod(("a", {"exitCode": 3, "message": "why"}))], "")
    assert crashed.agent.result.crashed and crashed.agent.cause is None and crashed.result is None
    assert crashed.agent.result.message == "container a ended with 3: why"
    early = read_end(job(FAILED), [pod(init=(("agent", {"exitCode": 1}),))], "verifier")
    assert early.agent.result.crashed
    broken = pod(("verifier", {"exitCode": 1}), init=(("agent", {"exitCode": 0}),))
    assert cause_of(read_end(job(FAILED), [broken], "verifier")) == (CauseClass.VERIFIER, "verify")


def test_a_result_of_a_pod_that_failed_is_not_taken():
    end = read_end(job(FAILED), [pod(("a", {"exitCode": 1, "message": '{"reward": 1}'}))], "")
    assert end.result is None


@pytest.mark.parametrize(
    ("why", "waiting", "expected"),
    [
        ("pending", "Unschedulable: 0/3 nodes", (CauseClass.DEADLINE, "pending")),
        ("pending", "", (CauseClass.DEADLINE, "pending")),
        ("pending", "ImagePullBackOff: no", (CauseClass.SANDBOX, "image")),
        ("pending", "InvalidImageName: no", (CauseClass.SANDBOX, "image")),
        ("pending", "CreateContainerConfigError: no secret", (CauseClass.SANDBOX, "boot")),
        ("running", "", (CauseClass.DEADLINE, "agent")),
        ("replaced", "", (CauseClass.HOST_LOST, "agent")),
    ],
)
def test_what_is_not_to_go_on(why: str, waiting: str, expected: tuple[CauseClass, str]):
    expire = Expire(rollout_id="a", attempt=1, uid="u", why=why, waiting=waiting)
    end = read_expiry(expire, 10.0, 20.0)
    assert cause_of(end) == expected
    assert end.agent.cause.next_step or why == "replaced"


@given(
    st.sampled_from([COMPLETE, FAILED, {}]),
    st.lists(
        st.builds(
            lambda code, reason, message: pod(("a", {"exitCode": code, "reason": reason, "message": message})),
            st.sampled_from([0, 1, 137]),
            st.sampled_from(["", "OOMKilled", "Error", "Completed"]),
            st.sampled_from(["", "x", '{"reward": 1}', '{"reward": null}']),
        ),
        max_size=2,
    ),
)
def test_every_end_has_a_reward_or_a_cause_and_never_both(status: dict, pods: list[Pod]):
    end = read_end(job(status), pods, "")
    rewarded = end.result is not None and end.result.reward is not None
    blamed = (
        end.agent.cause is not None or end.agent.result.crashed or (end.result is not None and end.result.cause is not None)
    )
    assert rewarded != blamed
    if rewarded:
        assert status is COMPLETE and len(pods) == 1


def test_phases_split_at_the_first_containers_start():
    times = {"startedAt": "2026-01-01T00:00:30Z", "finishedAt": "2026-01-01T00:01:30Z"}
    now = datetime.datetime(2026, 1, 1, 0, 5, tzinfo=datetime.UTC).timestamp()
    pending, agent = phases(job(COMPLETE), [pod(("a", times))], now)
    assert (pending.name, pending.seconds, agent.name, agent.seconds) == ("pending", 30.0, "agent", 60.0)
    (only,) = phases(job({}), [pod()], now)
    assert (only.name, only.seconds) == ("pending", 300.0)
    assert phases(Job(), [], now) == ()
