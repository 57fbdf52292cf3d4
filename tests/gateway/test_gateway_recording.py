"""Records line up, whatever happens to a call."""

import asyncio
import random

from whippletree.engines.scripted import Faults, ScriptedEngine
from whippletree.types import Sampling, WeightUpdate


async def test_every_record_of_a_rough_run_lines_up(make_world):
    """Streams break, harnesses leave, weights change: ids, logprobs, counts and version spans still agree in every record."""
    rng = random.Random(0)
    engines = [
        ScriptedEngine(None, vocabulary=420, context=4096, seed=seed, faults=Faults(reset_after=9 - seed, token_seconds=0.001))
        for seed in (0, 1)
    ]
    async with make_world(None, engines=engines, sampling=Sampling(max_tokens=20, seed=4)) as world:

        async def harness(rollout, number):
            pending = asyncio.create_task(world.chat([{"role": "user", "content": f"go {number}"}], rollout=rollout))
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.05)
                pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)

        tasks = [asyncio.create_task(harness(f"r{n % 3}", n)) for n in range(30)]
        for version in range(1, 4):
            await asyncio.sleep(0.02)
            for engine in engines:
                await engine.update_weights(WeightUpdate(directory=f"/{version}", policy_version=version))
        await asyncio.gather(*tasks)
        for rollout in ("r0", "r1", "r2"):
            report = await world.control.seal_async(rollout, 1)
            calls = world.calls(rollout)
            assert report.calls == len(calls) > 0
            assert [call.index for call in calls] == list(range(len(calls)))
            for call in calls:
                payload = world.store.payload(call)
                assert len(payload.sampled_ids) == len(payload.logprobs) == call.sampled_tokens > 0
                starts = [span.start for span in call.versions]
                assert starts[0] == 0
                assert starts == sorted(set(starts))
                assert starts[-1] < call.sampled_tokens
                assert not (call.delivered and call.finish_reason == "abort")
        status = await world.control.status_async()
        assert (status.in_flight, status.waiting) == (0, 0)
        assert [engine.in_flight for engine in status.engines] == [0, 0]
