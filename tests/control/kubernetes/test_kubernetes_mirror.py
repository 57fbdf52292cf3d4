"""The mirror of the cluster's objects: list, watch, list again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
from control_world import until
from kube_fake import FakeApi, refusal
from kube_world import OWNER, Site, manifest

from whippletree.control.kubernetes.labels import selector
from whippletree.control.kubernetes.mirror import Mirror
from whippletree.control.kubernetes.objects import Job
from whippletree.errors import ClusterError
from whippletree.kubernetes.access import open_access
from whippletree.kubernetes.client import JOBS, Cluster, Kind, WatchEvent


@asynccontextmanager
async def mirroring(cluster: Cluster, resync: float = 60.0) -> AsyncIterator[Mirror[Job]]:
    made = Mirror(cluster, JOBS, Job, selector(OWNER), lambda: None, resync=resync)
    task = asyncio.create_task(made.run())
    try:
        await asyncio.wait_for(made.synced.wait(), 20)
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(mirror: Mirror[Job]) -> list[str]:
    return sorted(job.metadata.name for job in mirror.objects.values())


class Behind(Cluster):
    """Its first watch asks for a version that the server has forgotten."""

    watches = 0

    async def watch(
        self, kind: Kind, type: type, selector: str, version: str, seconds: float
    ) -> AsyncGenerator[WatchEvent, None]:
        self.watches += 1
        if self.watches == 1:
            version = "1"
            kind = kind if self.access.tls is None else Kind("api/v1", "configmaps")  # a real server's cache knows Jobs
        async for event in super().watch(kind, type, selector, version, seconds):
            yield event


async def test_an_expired_version_leads_to_a_list_and_no_loop(site: Site):
    async with site.cluster() as cluster:
        await cluster.create(JOBS, manifest("first"))
    await asyncio.to_thread(site.api.compact)
    config = site.config()
    async with Behind(open_access(config), config) as cluster, mirroring(cluster) as mirror:
        await until(lambda: mirror.listed == 2)
        await cluster.create(JOBS, manifest("second"))
        await until(lambda: names(mirror) == ["first", "second"])
        assert (mirror.listed, cluster.watches) == (2, 2)


async def test_what_happens_is_mirrored(site: Site):
    async with site.cluster() as cluster, mirroring(cluster) as mirror:
        made = await cluster.create(JOBS, manifest("one"))
        await until(lambda: names(mirror) == ["one"])
        await cluster.delete(JOBS, "one", made.metadata.uid)
        await until(lambda: names(mirror) == [])
        assert list(mirror.gone) == [made.metadata.uid]
        assert mirror.listed == 1


async def test_the_next_list_corrects_what_the_watch_missed(site: Site):
    async with site.cluster() as cluster:
        made = await cluster.create(JOBS, manifest("one"))
        async with mirroring(cluster, 1.0) as mirror:
            mirror.objects.clear()  # as if the event had never come
            await until(lambda: mirror.listed >= 2 and names(mirror) == ["one"])
            assert made.metadata.uid in mirror.objects


def api_of(site: Site) -> FakeApi:
    assert isinstance(site.api, FakeApi)
    return site.api


async def test_a_cut_watch_goes_on_without_a_list(fake: Site):
    async with fake.cluster() as cluster, mirroring(cluster) as mirror:
        for number in range(3):
            api_of(fake).cut_watches()
            await cluster.create(JOBS, manifest(f"j{number}"))
        await until(lambda: len(mirror.objects) == 3)
        assert mirror.listed == 1


async def test_a_stalled_watch_is_opened_anew(fake: Site):
    api_of(fake).silent = True
    async with fake.cluster(stall_seconds=0.2) as cluster, mirroring(cluster) as mirror:
        await cluster.create(JOBS, manifest("one"))
        api_of(fake).silent = False
        await until(lambda: names(mirror) == ["one"])


async def test_a_server_that_is_away_is_waited_for(fake: Site):
    async with fake.cluster(retry_seconds=0.1) as cluster, mirroring(cluster, 0.5) as mirror:
        api_of(fake).fail("GET", "jobs", refusal(503, "ServiceUnavailable"), times=3)
        await cluster.create(JOBS, manifest("one"))
        await until(lambda: names(mirror) == ["one"] and mirror.listed > 1)


async def test_an_account_without_rights_is_told_at_once(fake: Site):
    api_of(fake).fail("GET", "jobs", refusal(403, "Forbidden"), times=5)
    async with fake.cluster() as cluster:
        with pytest.raises(ClusterError, match="403") as caught:
            await Mirror(cluster, JOBS, Job, selector(OWNER), lambda: None).run()
        assert "right" in caught.value.next_step


async def test_an_older_event_never_undoes_a_newer_one(fake: Site):
    def event(kind: str, version: int, active: int = 0, uid: str = "u") -> dict:
        meta = {"name": "one", "uid": uid, "resourceVersion": str(version)}
        return {"type": kind, "object": {"metadata": meta, "status": {"active": active}}}

    api_of(fake).scripts.append([event("ADDED", 5, 1), event("MODIFIED", 9, 3), event("MODIFIED", 7, 2), event("ADDED", 5, 1)])
    async with fake.cluster() as cluster, mirroring(cluster) as mirror:
        requests = api_of(fake).requests  # a list, the watch, and once that has ended with all that it said, the next
        await until(lambda: sum(method == "GET" and path.endswith("/jobs") for method, path in requests) >= 3)
        assert mirror.objects["u"].status.active == 3
        assert mirror._version == "9"
