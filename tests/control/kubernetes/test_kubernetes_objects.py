"""Objects as API servers write them."""

from __future__ import annotations

import msgspec
from kube_world import OWNER, Site, manifest, until_async

from whippletree.control.kubernetes.decide import Owner
from whippletree.control.kubernetes.labels import owner_labels, selector
from whippletree.control.kubernetes.objects import Job, observe
from whippletree.kubernetes.client import JOBS, PODS
from whippletree.kubernetes.objects import Pod

T0 = "2026-01-01T00:00:00Z"
T1 = "2026-01-01T00:00:05Z"


def read_job(text: str) -> Job:
    return msgspec.json.decode(text, type=Job)


def test_a_jobs_state_is_the_job_controllers_word():
    assert read_job('{"status": {}}').state == "active"
    assert read_job('{"status": {"active": 1, "conditions": null}}').state == "active"
    assert read_job('{"status": {"failed": 1}}').state == "active"  # not over before the condition says so
    assert read_job('{"status": {"succeeded": 1}}').state == "succeeded"
    assert read_job('{"status": {"conditions": [{"type": "Failed", "status": "True"}]}}').state == "failed"
    assert read_job('{"status": {"conditions": [{"type": "Failed", "status": "False"}]}}').state == "active"
    assert read_job('{"status": {"conditions": [{"type": "Suspended", "status": "True"}]}}').state == "active"


def pod(**status: object) -> Pod:
    meta = {"name": "p", "uid": "p1", "creationTimestamp": T0, "ownerReferences": [{"kind": "Job", "uid": "u"}]}
    return msgspec.convert({"metadata": meta, "status": status}, Pod)


def test_running_begins_with_the_first_containers_start():
    begun = {"running": {"startedAt": T1}}
    early = {"terminated": {"startedAt": T0, "exitCode": 0}}
    assert pod(phase="Pending").started == 0.0
    assert pod(phase="Pending", startTime=T0).started == 0.0  # the node took it: its images are still to come
    assert pod(containerStatuses=[{"name": "a", "state": begun}]).started == 1767225605.0
    both = pod(initContainerStatuses=[{"name": "i", "state": early}], containerStatuses=[{"name": "a", "state": begun}])
    assert both.started == 1767225600.0


def test_why_a_pod_waits():
    assert pod().waiting == ""
    creating = [{"name": "a", "state": {"waiting": {"reason": "ContainerCreating"}}}]
    assert pod(containerStatuses=creating).waiting == ""
    pulling = [{"name": "a", "state": {"waiting": {"reason": "ErrImagePull", "message": "denied"}}}]
    assert pod(containerStatuses=pulling).waiting == "ErrImagePull: denied"
    unscheduled = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}]
    assert pod(conditions=unscheduled).waiting == "Unschedulable: 0/3"


def test_a_job_with_its_pods_is_a_plain_value():
    meta = {"name": "j", "uid": "u", "labels": owner_labels(OWNER), "creationTimestamp": T0, "deletionTimestamp": T1}
    job = msgspec.convert({"metadata": meta, "status": {"active": 1}}, Job)
    stranger = msgspec.convert({"metadata": {"name": "s", "uid": "s"}}, Job)
    (found, other) = observe([job, stranger], [pod(containerStatuses=[{"name": "a", "state": {"running": {"startedAt": T1}}}])])
    assert (found.owner, found.state, found.deleting, found.pods) == (OWNER, "active", True, ("p1",))
    assert found.started - found.created == 5.0
    assert other.owner == Owner(run="", controller="")


async def test_what_a_server_writes_is_read(site: Site):
    async with site.cluster() as cluster:
        made = await cluster.create(JOBS, manifest("one"))

        async def observed() -> list:
            jobs, _ = await cluster.list_all(JOBS, Job, selector(OWNER))
            pods, _ = await cluster.list_all(PODS, Pod, selector(OWNER))
            return observe(jobs, pods)

        await until_async(observed, lambda found: len(found[0].pods) == 1 and bool(found[0].waiting))
        (one,) = await observed()
        assert (one.name, one.uid, one.owner, one.state) == ("one", made.metadata.uid, OWNER, "active")
        assert one.created > 1e9 and one.started == 0.0 and one.waiting == "Unschedulable: 0/3 nodes"
