"""The parts of Kubernetes' objects that are read, typed; what is not named here is ignored.

Manifests that are written stay plain JSON values (`Manifest`), because most of a Job or pod is its user's.
Invariants (tests/control/kubernetes/test_kubernetes_objects.py): objects that real API servers wrote are read, null lists
included.
"""

from __future__ import annotations

import datetime
from typing import Any

from whippletree.types import Struct

Manifest = dict[str, Any]


class KubeObject(Struct, rename="camel"):
    """Base of what the API server says; its field names are in camel case."""


class OwnerReference(KubeObject):
    """Example: OwnerReference(kind="Job", name="wt-...-1", uid="9f...")"""

    kind: str = ""
    name: str = ""
    uid: str = ""


class Meta(KubeObject):
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


class Condition(KubeObject):
    """Example: Condition(type="Failed", status="True", reason="DeadlineExceeded")"""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Waiting(KubeObject):
    """Example: Waiting(reason="ImagePullBackOff", message="Back-off pulling image")"""

    reason: str = ""
    message: str = ""


class Running(KubeObject):
    """Example: Running(started_at=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))"""

    started_at: datetime.datetime | None = None


class Terminated(KubeObject):
    """Example: Terminated(exit_code=137, reason="OOMKilled")"""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime.datetime | None = None
    finished_at: datetime.datetime | None = None


class ContainerState(KubeObject):
    """Example: ContainerState(terminated=Terminated(exit_code=0))"""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(KubeObject):
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


class PodStatus(KubeObject):
    """Example: PodStatus(phase="Failed", reason="Evicted", message="The node was low on resource: memory.")"""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(KubeObject):
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


class Named(KubeObject):
    """Any object, by its metadata. Example: Named(metadata=Meta(name="wt-3f9a1c20be-agent"))"""

    metadata: Meta = Meta()


class Status(KubeObject):
    """The API server's own words about a request. Example: Status(code=410, reason="Expired", message="too old version")"""

    status: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class StatusDetails(KubeObject):
    """Example: StatusDetails(retry_after_seconds=1)"""

    retry_after_seconds: float = 0.0
    causes: list[StatusCause] | None = None


class StatusCause(KubeObject):
    """Example: StatusCause(reason="ExitCode", message="3")"""

    reason: str = ""
    message: str = ""


def seconds(at: datetime.datetime | None) -> float:
    """Seconds since the epoch; 0 for None."""
    return at.timestamp() if at else 0.0
