"""The parts of Kubernetes' objects that are read, typed; what is not named here is ignored.

Manifests that are written stay plain JSON values (`Manifest`), because most of a Job is its user's.
Invariants (tests/control/kubernetes/test_kubernetes_objects.py): objects that real API servers wrote are read, null lists
included; what they say of time and state becomes the plain values that `decide` takes.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

from whippletree.control.kubernetes.decide import JobState, Observed, Owner
from whippletree.control.kubernetes.labels import owner_of
from whippletree.types import Struct

Manifest = dict[str, Any]


class _Object(Struct, rename="camel"):
    """Base of what the API server says; its field names are in camel case."""


class OwnerReference(_Object):
    """Example: OwnerReference(kind="Job", name="wt-...-1", uid="9f...")"""

    kind: str = ""
    name: str = ""
    uid: str = ""


class Meta(_Object):
    """Example: Meta(name="wt-...-1", uid="9f...", resource_version="901")"""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    creation_timestamp: datetime.datetime | None = None
    deletion_timestamp: datetime.datetime | None = None


class Condition(_Object):
    """Example: Condition(type="Failed", status="True", reason="DeadlineExceeded")"""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class JobStatus(_Object):
    """Example: JobStatus(succeeded=1, conditions=[Condition(type="Complete", status="True")])"""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: list[Condition] | None = None


class Job(_Object):
    """Example: Job(metadata=Meta(name="wt-...-1"), status=JobStatus(active=1))"""

    metadata: Meta = Meta()
    status: JobStatus = JobStatus()

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type if it holds."""
        return next((found for found in self.status.conditions or () if found.type == kind and found.status == "True"), None)

    @property
    def state(self) -> JobState:
        """Ended only when the Job controller says so. A count alone is enough for one pod and no retry."""
        if self.condition("Complete") or self.status.succeeded:
            return "succeeded"
        return "failed" if self.condition("Failed") else "active"


class Waiting(_Object):
    """Example: Waiting(reason="ImagePullBackOff", message="Back-off pulling image")"""

    reason: str = ""
    message: str = ""


class Running(_Object):
    """Example: Running(started_at=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))"""

    started_at: datetime.datetime | None = None


class Terminated(_Object):
    """Example: Terminated(exit_code=137, reason="OOMKilled")"""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime.datetime | None = None
    finished_at: datetime.datetime | None = None


class ContainerState(_Object):
    """Example: ContainerState(terminated=Terminated(exit_code=0))"""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Object):
    """Example: ContainerStatus(name="verifier", state=ContainerState(terminated=Terminated(exit_code=0)))"""

    name: str = ""
    state: ContainerState = ContainerState()

    @property
    def started(self) -> float:
        """When it started (seconds since the epoch), 0 if it has not."""
        at = (self.state.running and self.state.running.started_at) or (
            self.state.terminated and self.state.terminated.started_at
        )
        return at.timestamp() if at else 0.0


class PodStatus(_Object):
    """Example: PodStatus(phase="Failed", reason="Evicted", message="The node was low on resource: memory.")"""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(_Object):
    """Example: Pod(metadata=Meta(name="wt-...-1-x7k2p"), status=PodStatus(phase="Running"))"""

    metadata: Meta = Meta()
    status: PodStatus = PodStatus()

    @property
    def job_uid(self) -> str:
        """Uid of the Job that made it, "" if none did."""
        return next((ref.uid for ref in self.metadata.owner_references or () if ref.kind == "Job"), "")

    @property
    def containers(self) -> list[ContainerStatus]:
        """All that the kubelet reports, in the order in which they run."""
        return [*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ())]

    @property
    def started(self) -> float:
        """When its first container started (seconds since the epoch), 0 if none has."""
        return min((container.started for container in self.containers if container.started), default=0.0)

    def ended(self, name: str) -> bool:
        """Whether its container of that name has ended."""
        return any(container.name == name and container.state.terminated for container in self.containers)

    @property
    def waiting(self) -> str:
        """Why no container runs yet, as the cluster says it; "" if nothing is said."""
        for container in self.containers:
            state = container.state.waiting
            if state and state.reason not in ("", "PodInitializing", "ContainerCreating"):
                return f"{state.reason}: {state.message}".rstrip(": ")
        for condition in self.status.conditions or ():
            if condition.type == "PodScheduled" and condition.status == "False":
                return f"{condition.reason}: {condition.message}".rstrip(": ")
        return ""


class Named(_Object):
    """Any object, by its metadata. Example: Named(metadata=Meta(name="wt-3f9a1c20be-agent"))"""

    metadata: Meta = Meta()


class Status(_Object):
    """The API server's own words about a request. Example: Status(code=410, reason="Expired", message="too old version")"""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class StatusDetails(_Object):
    """Example: StatusDetails(retry_after_seconds=1)"""

    retry_after_seconds: float = 0.0


def seconds(at: datetime.datetime | None) -> float:
    """Seconds since the epoch; 0 for None."""
    return at.timestamp() if at else 0.0


def observe(jobs: Iterable[Job], pods: Iterable[Pod]) -> list[Observed]:
    """Jobs with what their pods say, as `decide` takes them."""
    by_job: dict[str, list[Pod]] = {}
    for pod in pods:
        by_job.setdefault(pod.job_uid, []).append(pod)
    return [_observed(job, by_job.get(job.metadata.uid, [])) for job in jobs]


def _observed(job: Job, pods: Sequence[Pod]) -> Observed:
    meta = job.metadata
    pods = sorted(pods, key=lambda pod: (seconds(pod.metadata.creation_timestamp), pod.metadata.uid))
    return Observed(
        name=meta.name,
        uid=meta.uid,
        owner=owner_of(meta.labels or {}) or Owner(run="", controller=""),
        state=job.state,
        created=seconds(meta.creation_timestamp),
        started=min((pod.started for pod in pods if pod.started), default=0.0),
        deleting=meta.deletion_timestamp is not None,
        pods=tuple(pod.metadata.uid for pod in pods),
        waiting=next((pod.waiting for pod in pods if pod.waiting), ""),
    )
