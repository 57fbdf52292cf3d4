"""Jobs as the API server describes them, and what `decide` takes of them and their pods.

Invariants (tests/control/kubernetes/test_kubernetes_objects.py): what Jobs and pods say of time and state becomes the plain
values that `decide` takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from whippletree.control.kubernetes.decide import JobState, Observed, Owner
from whippletree.control.kubernetes.labels import owner_of
from whippletree.kubernetes.objects import Condition, KubeObject, Meta, Pod, seconds


class JobStatus(KubeObject):
    """Example: JobStatus(succeeded=1, conditions=[Condition(type="Complete", status="True")])"""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: list[Condition] | None = None


class Job(KubeObject):
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
