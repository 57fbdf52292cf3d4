"""What an ended, stuck or vanished Job means for its attempt: pure functions over what the API server says.

| what the cluster says | cause | phase |
|---|---|---|
| exit 0 and a result | none: the reward counts | |
| exit 0, no result or a broken one | verifier | verify |
| a container ended otherwise | harness (verifier for a result container of its own) | agent (verify) |
| OOMKilled | sandbox | agent |
| a container cannot be started | sandbox | boot |
| Evicted, Preempting, NodeLost, node shut down, pod or Job gone or replaced | host_lost | agent |
| DeadlineExceeded, running too long | deadline | agent |
| pending too long: not scheduled | deadline | pending |
| pending too long: image | sandbox | image |
| pending too long: anything else | sandbox | boot |

Invariants (tests/control/kubernetes/test_kubernetes_outcome.py): every end has a finite reward or one cause; a result is taken
only from a pod that succeeded, and only from the container that is to give it; an infrastructure failure never has a reward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from whippletree.control.kubernetes.decide import Expire
from whippletree.control.kubernetes.objects import Job
from whippletree.control.policy import MESSAGE_LIMIT, AgentEnd
from whippletree.kubernetes.objects import ContainerStatus, Pod, Terminated, seconds
from whippletree.protocols import HarnessResult
from whippletree.tasks.reward import RewardExpression
from whippletree.tasks.scores import awaiting, rewarded
from whippletree.types import Cause, CauseClass, Phase, Struct, VerifierResult

HOST_REASONS = frozenset(
    {"Evicted", "Preempting", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity", "UnexpectedAdmissionError"}
)
START_REASONS = frozenset({"ContainerCannotRun", "StartError", "CreateContainerError", "RunContainerError"})
IMAGE_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "ImageInspectError",
)


class JobEnd(Struct):
    """How a Job ended: what the agent's side of it was, and what the verifier said if the agent's side was sound.

    Example: JobEnd(agent=AgentEnd(result=HarnessResult(exit_status="Completed")), result=VerifierResult(reward=1.0))
    """

    agent: AgentEnd
    result: VerifierResult | None = None


def read_end(job: Job, pods: Sequence[Pod], result_container: str) -> JobEnd:
    """The end of a Job that the cluster says has ended. `result_container`: "" means the only one."""
    failed = job.condition("Failed")
    if failed is not None and failed.reason == "DeadlineExceeded":
        return _cause(CauseClass.DEADLINE, "agent", f"the cluster ended the Job: {failed.message or failed.reason}")
    if not pods:
        return _cause(CauseClass.HOST_LOST, "agent", "the Job has ended and its pod is gone", "look at the cluster's events")
    if len(pods) > 1:
        return _cause(CauseClass.HOST_LOST, "agent", f"{len(pods)} pods ran for one attempt: none of them counts")
    pod = pods[0]
    if job.state == "succeeded":  # containers beside the main ones may have been stopped by force: that is no failure
        return JobEnd(agent=AgentEnd(result=HarnessResult(exit_status="Completed")), result=_result(pod, result_container))
    if (end := _pod_failure(pod)) is not None:
        return end
    for container in pod.containers:
        ended = container.state.terminated
        if ended is not None and ended.exit_code != 0:
            return _crash(container.name, ended, result_container)
    reason = pod.status.reason or (failed.reason if failed else "") or "no reason given"
    return _cause(CauseClass.HOST_LOST, "agent", f"the pod failed, and no container did: {reason}", "look at the node")


def _pod_failure(pod: Pod) -> JobEnd | None:
    """A failure of the machine or of the pod as a whole."""
    status = pod.status
    said = f"{status.reason}: {status.message}".rstrip(": ")
    if status.reason == "DeadlineExceeded":
        return _cause(CauseClass.DEADLINE, "agent", f"the cluster ended the pod: {said}")
    if status.reason in HOST_REASONS or status.reason.startswith("OutOf"):
        return _cause(CauseClass.HOST_LOST, "agent", f"the node gave the pod up: {said}", "look at the node")
    for condition in status.conditions or ():
        if condition.type == "DisruptionTarget" and condition.status == "True" and status.phase == "Failed":
            return _cause(CauseClass.HOST_LOST, "agent", f"the pod was disrupted: {condition.reason}: {condition.message}")
    for container in pod.containers:
        ended = container.state.terminated
        if ended is not None and ended.reason == "OOMKilled":
            advice = "raise its memory limit in the template"
            return _cause(CauseClass.SANDBOX, "agent", f"container {container.name} was killed for its memory", advice)
        if ended is not None and ended.reason in START_REASONS:
            message = f"container {container.name} could not be started: {ended.reason}: {ended.message}"
            return _cause(CauseClass.SANDBOX, "boot", message, "mend its image or command in the template")
    return None


def _crash(name: str, ended: Terminated, result_container: str) -> JobEnd:
    message = f"container {name} ended with {ended.exit_code}: {ended.message}".rstrip(": ")
    if name == result_container:
        return _cause(CauseClass.VERIFIER, "verify", message, "look at the attempt's logs")
    result = HarnessResult(exit_status=f"exit {ended.exit_code}", message=message[-MESSAGE_LIMIT:], crashed=True)
    return JobEnd(agent=AgentEnd(result=result))


def _result(pod: Pod, name: str) -> VerifierResult:
    """The verifier's word; one that is missing or broken is a failure of the verifier."""
    container = _result_container(pod, name)
    if container is None or container.state.terminated is None:
        return _no_result(f"the pod has no ended container {name!r}", "set control.kubernetes.result_container")
    if container.state.terminated.exit_code:
        return _no_result(f"container {container.name} ended with {container.state.terminated.exit_code}", "see its log")
    text = container.state.terminated.message
    if not text.strip():
        return _no_result(f"container {container.name} ended well and left no result", "write it to /dev/termination-log")
    try:
        result = msgspec.json.decode(text, type=VerifierResult)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        return _no_result(f"container {container.name} left no VerifierResult: {error}: {text[:200]}", "it has room for 4 KB")
    numbers = [result.reward or 0.0, *result.scores.values()]
    if not all(math.isfinite(number) for number in numbers):
        return _no_result(f"container {container.name} left a number that is not finite", "mend the verifier")
    if result.reward is None and result.cause is None and not result.scores:
        return _no_result(f"container {container.name} left neither a reward, scores nor a cause", "mend the verifier")
    return msgspec.structs.replace(result, pending=(), rubrics=(), expression="")  # that is not the pod's to say


def paid(result: VerifierResult, rule: RewardExpression | None, later: Sequence[str]) -> VerifierResult:
    """A verifier's result with the reward that the run's rule makes of its scores, or waiting for the rubrics named `later`;
    its own reward is the score "reward", and stands where there is neither rule nor rubric. A failure where no reward can come
    of it."""
    if result.cause is not None or (result.reward is not None and rule is None and not later):
        return result
    own = {} if result.reward is None or "reward" in later else {"reward": result.reward}
    whole = msgspec.structs.replace(result, reward=None, scores={**result.scores, **own})
    return awaiting(whole, rule, later) if later else rewarded(whole, rule)


def _result_container(pod: Pod, name: str) -> ContainerStatus | None:
    if not name:
        main = pod.status.container_statuses or ()
        return main[0] if len(main) == 1 else None
    return next((container for container in pod.containers if container.name == name), None)


def _no_result(message: str, next_step: str) -> VerifierResult:
    cause = Cause(cause=CauseClass.VERIFIER, phase="verify", message=message[:MESSAGE_LIMIT], next_step=next_step)
    return VerifierResult(reward=None, cause=cause)


def read_expiry(expire: Expire, pending_seconds: float, running_seconds: float) -> JobEnd:
    """The end of a Job that is not to go on."""
    waiting = expire.waiting or "the cluster gives no reason"
    if expire.why == "replaced":
        return _cause(CauseClass.HOST_LOST, "agent", "its pod was lost and the cluster made another", "look at the node")
    if expire.why == "running":
        advice = "raise control.kubernetes.running_seconds"
        return _cause(CauseClass.DEADLINE, "agent", f"not done within {running_seconds:g} s of its start", advice)
    message = f"no container started within {pending_seconds:g} s: {waiting}"
    if waiting.startswith(IMAGE_REASONS):
        return _cause(CauseClass.SANDBOX, "image", message, "check the image's name, its registry and the pull secret")
    if waiting.startswith(("Unschedulable", "the cluster", "SchedulerError")):
        advice = "free machines, ask for less in the template, or raise control.kubernetes.pending_seconds"
        return _cause(CauseClass.DEADLINE, "pending", message, advice)
    return _cause(CauseClass.SANDBOX, "boot", message, "look at the cluster's events for the pod")


def lost() -> JobEnd:
    """The end of a Job that is gone."""
    message = "its Job is gone, and nobody knows how it ended"
    return _cause(CauseClass.HOST_LOST, "agent", message, "find out who deletes Jobs, or raise finished_ttl_seconds")


def _cause(kind: CauseClass, phase: str, message: str, next_step: str = "") -> JobEnd:
    cause = Cause(cause=kind, phase=phase, message=message[:MESSAGE_LIMIT], next_step=next_step)
    timed_out = kind is CauseClass.DEADLINE
    return JobEnd(agent=AgentEnd(result=HarnessResult(exit_status=kind.value), timed_out=timed_out, cause=cause))


def phases(job: Job, pods: Sequence[Pod], now: float) -> tuple[Phase, ...]:
    """What the Job's time went into: "pending" up to its first container's start, "agent" from there to its last one's end."""
    created = seconds(job.metadata.creation_timestamp)
    if not created:
        return ()
    started = min((pod.started for pod in pods if pod.started), default=0.0)
    if not started:
        return (Phase(name="pending", started=created, seconds=max(0.0, now - created)),)
    states = [container.state for pod in pods for container in pod.containers]
    ends = [seconds(state.terminated.finished_at) for state in states if state.terminated]
    end = now if any(state.running for state in states) or not any(ends) else max(ends)
    return (
        Phase(name="pending", started=created, seconds=max(0.0, started - created)),
        Phase(name="agent", started=started, seconds=max(0.0, end - started)),
    )
