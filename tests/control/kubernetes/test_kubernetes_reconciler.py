"""The reconciler end to end: real gateway, store and Jobs, against both clusters."""

from __future__ import annotations

import pytest
from control_world import until
from kube_world import KubeWorld

from whippletree.gateway.keys import mint
from whippletree.types import CauseClass


async def test_a_rollout_becomes_a_job_and_its_result_the_reward(kube: KubeWorld):
    names = [*kube.want("solve", 3), *kube.want("half")]
    async with kube.controlling(kube.kube_spec()):
        rollouts = await kube.finished(names)
        assert [rollout.reward for rollout in rollouts] == [1.0, 1.0, 1.0, 0.5]
        await until_async(lambda: kube.site.names("jobs"), [])
    attempt = kube.last(names[0])
    assert attempt.sandbox.startswith(f"kubernetes:{kube.site.namespace}/wt-")
    assert [phase.name for phase in attempt.phases] == ["pending", "agent"]
    assert kube.store.calls(names[0], 1)[0].sampled_tokens > 0
    assert sorted(kube.site.kubelet.ran) == sorted(names)


async def until_async(read, expected, seconds: float = 30.0) -> None:
    """Waits until what is read is as expected."""
    import asyncio
    import time

    limit = time.monotonic() + seconds
    while (found := await read()) != expected:
        assert time.monotonic() < limit, found
        await asyncio.sleep(0.05)
