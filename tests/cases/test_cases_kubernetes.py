"""Faults of other systems' Kubernetes controllers, each on our own parts with its input."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from control_world import until
from kube_fake import FakeApi
from kube_world import OWNER, KubeWorld, Site, fake_site, manifest

from whippletree.control.kubernetes.decide import End, Lose, Wanted, decide
from whippletree.control.kubernetes.labels import owner_labels, selector
from whippletree.control.kubernetes.mirror import Mirror
from whippletree.control.kubernetes.objects import Job, observe
from whippletree.kubernetes.client import JOBS

D24 = {
    "watch_events": [
        {
            "type": "MODIFIED",
            "object": {"metadata": {"name": "job-1", "resourceVersion": "100"}, "status": {"active": 1}},
        },
        {
            "type": "ERROR",
            "object": {
                "kind": "Status",
                "status": "Failure",
                "reason": "Expired",
                "code": 410,
                "message": "too old resource version: 100 (900)",
            },
        },
    ],
    "then_list": [{"metadata": {"name": "job-1", "resourceVersion": "901"}, "status": {"succeeded": 1}}],
}


def wanted(job: str, **changes: object) -> Wanted:
    return Wanted(
        rollout_id=job, attempt=1, job=job, stage="placed", pending_seconds=1e9, running_seconds=1e9, seen=True, **changes
    )


@pytest.fixture
async def site(tmp_path: Path):
    async with fake_site(tmp_path) as made:
        yield made


async def test_D24_a_410_inside_the_stream_leads_to_a_list(site: Site) -> None:
    api = site.api
    assert isinstance(api, FakeApi)
    marks = {"uid": "u1", "namespace": site.namespace, "labels": owner_labels(OWNER)}
    events = [dict(event) for event in D24["watch_events"]]
    events[0] = {**events[0], "object": {**events[0]["object"], "metadata": {**events[0]["object"]["metadata"], **marks}}}
    api.scripts.append(events)

    ends: list[object] = []
    async with site.cluster() as cluster:
        mirror = Mirror(cluster, JOBS, Job, selector(OWNER), lambda: None)
        running = [wanted("job-1"), wanted("job-2")]

        def look() -> None:
            """What the reconciler does on each change: an attempt that ended is not decided on again."""
            found = observe(mirror.objects.values(), ())
            for action in decide(running, found, owner=OWNER, listed=mirror.listed, now=0.0):
                if isinstance(action, End | Lose):
                    ends.append(action)
                    running[:] = [entry for entry in running if entry.rollout_id != action.rollout_id]

        def changed() -> None:
            if mirror.listed == 1 and "u1" in mirror.objects:  # the scripted event came: now the list is the case's
                for entry in D24["then_list"]:
                    value = {**entry, "metadata": {**entry["metadata"], **marks}}
                    api.objects["jobs", site.namespace, "job-1"] = value
                api.revision = 901
            if mirror.listed >= 2:
                look()

        mirror._changed = changed
        task = asyncio.create_task(mirror.run())
        await until(lambda: len(ends) == 2)
        assert mirror._version == "901"
        await cluster.create(JOBS, manifest("job-3"))  # it goes on watching
        await until(lambda: any(job.metadata.name == "job-3" for job in mirror.objects.values()))
        reads = [path for method, path in api.requests if method == "GET" and path.endswith("/jobs")]
        assert len(reads) == 4  # list, watch, list, watch: no loop on 410
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert sorted(ends, key=lambda action: action.rollout_id) == [
        End(rollout_id="job-1", attempt=1, uid="u1"),
        Lose(rollout_id="job-2", attempt=1),
    ]


async def test_D25_a_connection_that_falls_silent_does_not_hold_a_slot(site: Site, tmp_path: Path) -> None:
    """As far as it applies: nothing is executed over a websocket, but a watch can fall silent while its Job ends."""
    world = KubeWorld(tmp_path / "run", site)
    api = site.api
    assert isinstance(api, FakeApi)
    async with world.serving():
        names = world.want("hang")
        async with world.reconciling(stall_seconds=0.3, jobs=1):
            await until(lambda: site.kubelet.ran == names)
            api.silent = True
            api.cut_watches()
            site.kubelet.release.set()
            await until(lambda: any("conditions" in job["status"] for key, job in api.objects.items() if key[0] == "jobs"))
            api.silent = False
            (rollout,) = await world.finished(names)
            assert rollout.reward == 1.0
            more = world.add(1, world.task, harness="solve", source="next")  # the slot is free again
            assert (await world.finished(more))[0].reward == 1.0
    world.close()
