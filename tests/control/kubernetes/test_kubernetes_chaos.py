"""Many rollouts while the controller is killed, or the API server fails, at random points of a seed."""

from __future__ import annotations

import asyncio
import random

import pytest
from aiohttp import web
from kube_fake import FakeApi, refusal
from kube_kubelet import AGENT
from kube_world import KubeWorld, process, until_async

ROLLOUTS = 12
KILLS = 5


async def check(kube: KubeWorld, names: list[str]) -> None:
    """Each rollout ended once with its reward, no attempt had two pods, and nothing is left."""
    for rollout in await kube.finished(names, seconds=90.0):
        assert rollout.reward == 1.0, rollout
        results = [attempt.result for attempt in kube.store.attempts(rollout.spec.rollout_id)]
        assert [result.reward for result in results if result is not None] == [1.0]
    ran = kube.site.kubelet.attempts
    assert len(ran) == len(set(ran))


async def test_kills_at_random_points_lose_and_double_nothing(kube: KubeWorld):
    names = kube.want("solve", 2 * ROLLOUTS, max_attempts=2)
    pick = random.Random(7)
    for _ in range(KILLS):
        async with process(kube.kube_spec(jobs=3), kube.directory) as controller:
            await asyncio.sleep(pick.uniform(0.6, 1.6))
            controller.kill()
            await controller.wait()
    async with kube.reconciling():
        await check(kube, names)
        await until_async(lambda: kube.site.names("jobs"), [])
    assert [name for name in await kube.site.names("secrets") if name.startswith("wt-")] == []
    assert await kube.site.names("networkpolicies") == []


class Unreliable:
    """Some requests fail before they take effect, some after it, and watches are cut."""

    def __init__(self, api: FakeApi, seed: int) -> None:
        self.api = api
        self.pick = random.Random(seed)
        self.faults = 0
        self.route = api._route
        api._route = self

    async def __call__(self, request: web.Request, namespace: str, plural: str, rest: list[str]) -> web.StreamResponse:
        ours = request.headers.get("User-Agent") != AGENT
        share = self.pick.random()
        if not ours or request.query.get("watch") == "true" or self.faults > 200 or share > 0.3:
            return await self.route(request, namespace, plural, rest)
        self.faults += 1
        if share < 0.1:
            return refusal(self.pick.choice([429, 500, 503]), "Failed")
        await self.route(request, namespace, plural, rest)
        if share < 0.2:
            self.api.cut_watches()
            return refusal(504, "Timeout")
        assert request.transport is not None
        request.transport.abort()
        return web.Response()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_an_unreliable_api_server_changes_no_outcome(fake_kube: KubeWorld, seed: int):
    names = fake_kube.want("solve", ROLLOUTS, max_attempts=1)
    api = fake_kube.site.api
    assert isinstance(api, FakeApi)
    async with fake_kube.controlling(fake_kube.kube_spec(jobs=4, resync_seconds=1.0)):
        unreliable = Unreliable(api, seed)
        await check(fake_kube, names)
        api._route = unreliable.route
        await until_async(lambda: fake_kube.site.names("jobs"), [])
    assert unreliable.faults > 5
    assert sorted(fake_kube.site.kubelet.ran) == sorted(names)
