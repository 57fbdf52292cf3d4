"""A reconciler that is killed at any point, and the next one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from control_world import until
from kube_fake import FakeApi
from kube_world import KubeWorld, process, until_async

from whippletree.control.kubernetes.attempts import ClusterAttempt, ClusterParts
from whippletree.control.kubernetes.decide import Owner
from whippletree.control.kubernetes.serve import run_id
from whippletree.control.kubernetes.template import JobTemplate
from whippletree.control.seal import GatewaySealer
from whippletree.gateway.keys import control_key
from whippletree.kubernetes.client import JOBS
from whippletree.types import CauseClass


async def kill(controller: asyncio.subprocess.Process) -> None:
    controller.send_signal(signal.SIGKILL)
    await controller.wait()


async def test_after_kill_9_running_jobs_are_adopted_and_run_once(kube: KubeWorld):
    names = kube.want("hang", 3)
    async with process(kube.kube_spec(), kube.directory) as controller:
        await until(lambda: len(kube.site.kubelet.ran) == 3)
        await kill(controller)
    async with kube.reconciling():
        kube.site.kubelet.release.set()
        rollouts = await kube.finished(names)
    assert [(rollout.reward, rollout.attempt) for rollout in rollouts] == [(1.0, 1)] * 3
    assert sorted(kube.site.kubelet.ran) == sorted(names)
    assert await kube.site.names("jobs") == []


async def test_what_ended_while_nobody_looked_is_recorded(kube: KubeWorld):
    (name,) = kube.want("hang")
    async with process(kube.kube_spec(), kube.directory) as controller:
        await until(lambda: kube.site.kubelet.ran == [name])
        await kill(controller)
    kube.site.kubelet.release.set()
    await until_async(lambda: kube.site.objects("jobs"), lambda found: found[0]["status"].get("succeeded") == 1)
    async with kube.reconciling():
        (rollout,) = await kube.finished([name])
    assert (rollout.reward, rollout.attempt) == (1.0, 1)
    assert kube.site.kubelet.ran == [name]


async def test_a_kill_between_claim_and_create_puts_the_rollout_back(kube: KubeWorld):
    (name,) = kube.want("solve", max_attempts=1)
    kube.store.claim("local/dead", 1).result()
    async with kube.controlling(kube.kube_spec()):
        (rollout,) = await kube.finished([name])
    assert (rollout.reward, rollout.attempt) == (1.0, 2)
    assert kube.store.attempts(name)[0].cause.cause is CauseClass.HOST_LOST
    assert kube.site.kubelet.ran == [name]


@asynccontextmanager
async def parts_of(kube: KubeWorld) -> AsyncIterator[ClusterParts]:
    """What an earlier controller had in its hands."""
    spec = kube.kube_spec()
    sealer = GatewaySealer(spec.gateway_url, control_key(kube.secret), kube.store)
    async with kube.site.cluster(template=str(kube.template)) as cluster:
        yield ClusterParts(
            store=kube.store,
            sealer=sealer,
            cluster=cluster,
            owner=Owner(run=await asyncio.to_thread(run_id, kube.store), controller="local"),
            template=JobTemplate.load(kube.template),
            bindings=spec.harnesses,
            control=spec.control,
            secret=kube.secret,
            gateway_url=spec.gateway_url,
            model="policy",
            directory=kube.directory,
        )
    sealer.close()


async def test_a_kill_between_the_job_and_its_secret(kube: KubeWorld):
    (name,) = kube.want("solve")
    (attempt,) = kube.store.claim("local/dead", 1).result()
    async with parts_of(kube) as parts:
        made = ClusterAttempt(parts, kube.store.rollout(name).spec, attempt)
        await parts.cluster.create(JOBS, await made._manifest())
    await until(lambda: kube.site.kubelet.ran == [name])  # its pod waits for the Secret
    async with kube.controlling(kube.kube_spec()):
        (rollout,) = await kube.finished([name])
    assert (rollout.reward, rollout.attempt) == (1.0, 1)
    assert kube.site.kubelet.ran == [name]


async def test_placing_twice_makes_one_job(kube: KubeWorld):
    """The answer to the first create was lost: AlreadyExists is success, because it is ours."""
    (name,) = kube.want("solve")
    (attempt,) = kube.store.claim("local/dead", 1).result()
    async with parts_of(kube) as parts:
        made = ClusterAttempt(parts, kube.store.rollout(name).spec, attempt)
        uids = {await made.place(), await made.place()}
        assert len(uids) == 1 and all(isinstance(uid, str) for uid in uids)
    assert len(await kube.site.names("jobs")) == 1


async def test_a_job_of_somebody_else_under_our_name_is_not_taken(kube: KubeWorld):
    (name,) = kube.want("solve")
    (attempt,) = kube.store.claim("local/dead", 1).result()
    async with parts_of(kube) as parts:
        made = ClusterAttempt(parts, kube.store.rollout(name).spec, attempt)
        manifest = await made._manifest()
        manifest["metadata"]["labels"] = {"team": "others"}
        await parts.cluster.create(JOBS, manifest)
        cause = await made.place()
    assert cause.cause is CauseClass.CONFIGURATION and "somebody else" in cause.message
    assert await kube.site.names("jobs") == [made.job]


async def test_a_finished_job_that_its_ttl_removed_is_lost_and_tried_again(kube: KubeWorld):
    (name,) = kube.want("hang", max_attempts=2)
    async with process(kube.kube_spec(finished_ttl_seconds=1), kube.directory) as controller:
        await until(lambda: kube.site.kubelet.ran == [name])
        await kill(controller)
    kube.site.kubelet.release.set()
    await until_async(lambda: kube.site.names("jobs"), [])
    async with kube.controlling(kube.kube_spec()):
        (rollout,) = await kube.finished([name])
    assert (rollout.reward, rollout.attempt) == (1.0, 2)
    assert kube.store.attempts(name)[0].cause.cause is CauseClass.HOST_LOST


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
async def test_a_kill_while_a_create_is_in_the_air(fake_kube: KubeWorld, answered: bool):
    """The API server makes the Job, and the controller dies before it hears of it; or before the server made it."""
    kube = fake_kube
    (name,) = kube.want("solve")
    api = kube.site.api
    assert isinstance(api, FakeApi)
    held = asyncio.Event()
    free = asyncio.Event()
    create = api._route

    async def route(request: web.Request, namespace: str, plural: str, rest: list[str]) -> web.StreamResponse:
        if request.method != "POST" or plural != "jobs" or held.is_set():
            return await create(request, namespace, plural, rest)
        answer = await create(request, namespace, plural, rest) if answered else web.Response(status=500)
        held.set()
        await free.wait()
        return answer

    api._route = route
    async with process(kube.kube_spec(), kube.directory) as controller:
        await held.wait()
        await kill(controller)
    free.set()
    async with kube.controlling(kube.kube_spec()):
        (rollout,) = await kube.finished([name])
    assert rollout.reward == 1.0
    assert rollout.attempt == (1 if answered else 2)
    assert kube.site.kubelet.ran == [name]
    assert len([1 for method, path in api.requests if method == "POST" and path.endswith("/jobs")]) == (1 if answered else 2)


async def test_a_late_job_of_an_old_attempt_is_removed_and_changes_nothing(kube: KubeWorld):
    (name,) = kube.want("hang", max_attempts=3)
    (attempt,) = kube.store.claim("local/dead", 1).result()
    async with kube.reconciling():
        await until(lambda: kube.site.kubelet.ran == [name])  # attempt 2 runs
        async with parts_of(kube) as parts:
            made = ClusterAttempt(parts, kube.store.rollout(name).spec, attempt)
            await parts.cluster.create(JOBS, await made._manifest())
        await until_async(lambda: kube.site.names("jobs"), lambda found: made.job not in found)
        kube.site.kubelet.release.set()
        (rollout,) = await kube.finished([name])
    assert (rollout.reward, rollout.attempt) == (1.0, 2)


async def test_sigterm_ends_it_with_status_0(kube: KubeWorld):
    (name,) = kube.want("hang")
    async with process(kube.kube_spec(), kube.directory) as controller:
        await until(lambda: kube.site.kubelet.ran == [name])
        controller.terminate()
        assert await asyncio.wait_for(controller.wait(), 30) == 0
    assert await kube.site.names("jobs") == []
    assert kube.store.rollout(name).state == "queuing"
