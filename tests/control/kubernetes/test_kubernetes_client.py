"""The verbs of the REST API, against both clusters; failing on demand only in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_fake import FakeApi, refusal
from kube_world import OWNER, Site, manifest, until_async

from whippletree.control.kubernetes.labels import selector
from whippletree.control.kubernetes.objects import Job
from whippletree.control.kubernetes.template import JobLimits, JobTemplate, JobVariables, own
from whippletree.errors import ClusterError
from whippletree.kubernetes.client import JOBS, PODS, Cluster, Kind, WatchEvent, backoff
from whippletree.kubernetes.objects import Named

MAPS = Kind("api/v1", "configmaps")


async def names(cluster: Cluster, page: int = 500) -> list[str]:
    return [job.metadata.name for job in (await cluster.list_all(JOBS, Job, selector(OWNER), page=page))[0]]


async def test_a_second_object_of_a_name_is_refused(site: Site):
    async with site.cluster() as cluster:
        first = await cluster.create(JOBS, manifest("one"))
        with pytest.raises(ClusterError) as caught:
            await cluster.create(JOBS, manifest("one"))
        assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")
        assert (await cluster.read(JOBS, "one", Named)).metadata.uid == first.metadata.uid


async def test_a_stale_replace_is_a_conflict(site: Site):
    async with site.cluster() as cluster:
        await cluster.create(JOBS, manifest("one"))
        body = await site.ask("GET", site.path("jobs", "one"))
        await site.ask("PATCH", site.path("jobs", "one"), {"metadata": {"labels": {"touched": "yes"}}})
        with pytest.raises(ClusterError) as caught:
            await cluster.replace(JOBS, "one", body)
        assert (caught.value.status, caught.value.reason) == (409, "Conflict")


async def test_delete_means_one_object_and_is_content_if_it_is_gone(site: Site):
    async with site.cluster() as cluster:
        made = await cluster.create(JOBS, manifest("one"))
        await cluster.delete(JOBS, "one", "another-uid")
        assert await names(cluster) == ["one"]
        await cluster.delete(JOBS, "one", made.metadata.uid)
        await until_async(lambda: names(cluster), [])
        await cluster.delete(JOBS, "one", made.metadata.uid)
        await until_async(lambda: site.names("pods"), [])  # with what it owned


async def test_a_list_is_whole_over_its_pages(site: Site):
    async with site.cluster() as cluster:
        await asyncio.gather(*(cluster.create(JOBS, manifest(f"j{number}")) for number in range(7)))
        assert await names(cluster, page=2) == [f"j{number}" for number in range(7)]
        assert await names(cluster) == [f"j{number}" for number in range(7)]


async def test_a_list_of_nothing_is_empty(site: Site):
    async with site.cluster() as cluster:
        assert await names(cluster) == []


async def test_a_watch_goes_on_from_the_lists_version(site: Site):
    async with site.cluster() as cluster:
        await cluster.create(JOBS, manifest("before"))
        _, version = await cluster.list_all(JOBS, Job, selector(OWNER))
        after = await cluster.create(JOBS, manifest("after"))
        await cluster.delete(JOBS, "after", after.metadata.uid)
        seen: list[tuple[str, str]] = []
        async for event in cluster.watch(JOBS, Job, selector(OWNER), version, 20):
            if event.object.metadata.name == "after":
                seen.append((event.type, event.object.metadata.name))
            if event.type == "DELETED":
                break
        assert seen[0] == ("ADDED", "after") and seen[-1] == ("DELETED", "after")


async def test_a_watch_ends_by_itself(site: Site):
    async with site.cluster() as cluster:
        _, version = await cluster.list_all(JOBS, Job, selector(OWNER))
        events: list[WatchEvent[Job]] = [event async for event in cluster.watch(JOBS, Job, selector(OWNER), version, 1)]
        assert [event for event in events if event.type != "BOOKMARK"] == []


async def test_a_version_that_was_compacted_is_gone(site: Site):
    async with site.cluster() as cluster:
        _, old = await cluster.list_all(JOBS, Job, selector(OWNER))
        for number in range(3):
            await cluster.create(JOBS, manifest(f"j{number}"))
        await asyncio.to_thread(site.api.compact)
        with pytest.raises(ClusterError) as caught:
            kind = MAPS if site.real else JOBS  # the real server's cache still knows recent Jobs, and no old configuration maps
            async for _ in cluster.watch(kind, Named, "", "1" if site.real else old, 5):
                pass
        assert caught.value.status == 410
        assert await names(cluster) == ["j0", "j1", "j2"]


async def test_what_cannot_be_is_said_with_its_reason(site: Site):
    async with site.cluster() as cluster:
        with pytest.raises(ClusterError) as missing:
            await cluster.read(JOBS, "nowhere", Named)
        assert missing.value.status == 404
        bad = manifest("bad")
        bad["spec"]["template"]["spec"]["restartPolicy"] = "Always"
        with pytest.raises(ClusterError) as invalid:
            await cluster.create(JOBS, bad)
        assert invalid.value.status == 422 and invalid.value.next_step


async def test_the_example_template_is_accepted(site: Site):
    site.kubelet.paused = True
    template = JobTemplate.load(Path(__file__).parents[3] / "examples" / "kubernetes-job.yaml")
    limits = JobLimits(agent_seconds=300.0, verify_seconds=120.0, running_seconds=3600.0)
    plain = dict.fromkeys(("rollout_id", "name", "model", "source", "harness", "task_id", "task_path", "image"), "x")
    urls = {"gateway_url": "http://10.0.0.1:8100", "base_url": "http://10.0.0.1:8100/v1", "workdir": "/app"}
    job = template.render(JobVariables(**plain, **urls, attempt=1, instruction="a: [b", limits=limits))
    config = site.config(setup_container="setup", result_container="verifier")
    async with site.cluster() as cluster:
        await cluster.create(JOBS, own(job, config, OWNER, rollout_id="x", attempt=1, origin="example"))


# --- failing on demand -----------------------------------------------------------------------------------------------------


def api_of(site: Site) -> FakeApi:
    assert isinstance(site.api, FakeApi)
    return site.api


@pytest.mark.parametrize(
    "answer",
    [refusal(status, "Failed") for status in (429, 500, 502, 503, 504)] + [None],
    ids=["429", "500", "502", "503", "504", "cut"],
)
async def test_a_busy_or_silent_server_is_asked_again(fake: Site, answer):
    api_of(fake).fail("POST", "jobs", answer, times=2)
    async with fake.cluster() as cluster:
        await cluster.create(JOBS, manifest("one"))
        assert await names(cluster) == ["one"]


async def test_a_create_whose_answer_was_lost_made_one_object(fake: Site):
    api_of(fake).fail("POST", "jobs", None, after=True)
    async with fake.cluster() as cluster:
        with pytest.raises(ClusterError) as caught:
            await cluster.create(JOBS, manifest("one"))
        assert caught.value.reason == "AlreadyExists"
        assert await names(cluster) == ["one"]


async def test_a_race_for_the_quota_is_tried_again(fake: Site):
    api_of(fake).fail("POST", "jobs", refusal(409, "Conflict", "Operation cannot be fulfilled on resourcequotas"))
    async with fake.cluster() as cluster:
        await cluster.create(JOBS, manifest("one"))


async def test_patience_ends(fake: Site):
    api_of(fake).fail("GET", "jobs", refusal(503, "ServiceUnavailable"), times=1000)
    async with fake.cluster(retry_seconds=3.0) as cluster:
        with pytest.raises(ClusterError) as caught:
            await names(cluster)
        assert caught.value.status == 503
    asked = [path for _, path in api_of(fake).requests if path == fake.path("jobs")]
    assert 2 <= len(asked) < 30  # with pauses that grow


async def test_a_refusal_is_not_asked_again(fake: Site):
    api_of(fake).fail("POST", "jobs", refusal(403, "Forbidden"))
    async with fake.cluster() as cluster:
        with pytest.raises(ClusterError, match="403"):
            await cluster.create(JOBS, manifest("one"))
    assert [path for method, path in api_of(fake).requests if method == "POST"] == [fake.path("jobs")]


async def test_pages_that_expired_begin_again(fake: Site):
    async with fake.cluster() as cluster:
        for number in range(4):
            await cluster.create(JOBS, manifest(f"j{number}"))
        api_of(fake).fail("GET", "jobs", refusal(410, "Expired"), after=True)
        assert await names(cluster, page=2) == ["j0", "j1", "j2", "j3"]


async def test_a_watch_that_stalls_ends(fake: Site):
    api_of(fake).silent = True
    async with fake.cluster(stall_seconds=0.2) as cluster:
        with pytest.raises(ClusterError) as caught:
            async for _ in cluster.watch(JOBS, Job, selector(OWNER), "0", 60):
                pass
        assert caught.value.status == 0


async def test_a_watch_that_is_cut_ends(fake: Site):
    async with fake.cluster() as cluster:
        events = cluster.watch(JOBS, Job, selector(OWNER), "0", 60)
        await cluster.create(JOBS, manifest("one"))
        assert (await anext(events)).object.metadata.name == "one"
        api_of(fake).cut_watches()
        assert [event.type async for event in events if event.type == "DELETED"] == []


async def test_an_error_inside_the_stream_is_an_error(fake: Site):
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
    api_of(fake).scripts.append([error])
    async with fake.cluster() as cluster:
        with pytest.raises(ClusterError) as caught:
            async for _ in cluster.watch(JOBS, Job, selector(OWNER), "0", 60):
                pass
        assert (caught.value.status, caught.value.reason) == (410, "Expired")


async def test_a_long_event_arrives_whole(fake: Site):
    long = manifest("long")
    long["metadata"]["annotations"] = {"text": "x" * 900_000}
    api_of(fake).scripts.append([{"type": "ADDED", "object": long}])
    async with fake.cluster() as cluster:
        found = [event async for event in cluster.watch(JOBS, Job, selector(OWNER), "0", 60)]
    assert len((found[0].object.metadata.annotations or {})["text"]) == 900_000


async def test_a_pod_that_is_gone_has_no_log(fake: Site):
    async with fake.cluster() as cluster:
        with pytest.raises(ClusterError) as caught:
            await cluster.log("nowhere", "a", lines=10, kilobytes=1)
        assert caught.value.status == 404
        await cluster.delete(PODS, "nowhere")


@given(st.integers(1, 10_000), st.floats(0, 1e6), st.floats(0, 0.999))
def test_pauses_grow_and_have_a_limit(tries: int, retry_after: float, draw: float):
    pause = backoff(tries, retry_after, draw)
    assert 0 < pause <= 60.0
    assert pause >= min(retry_after, 60.0)
    assert backoff(tries + 1, 0.0, draw) >= backoff(tries, 0.0, draw)
