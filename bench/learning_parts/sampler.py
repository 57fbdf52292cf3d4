"""The sampling side of the loops' benchmark, a process: gateway, and agents that repeat a recorded workload through it.

An agent's rollout is a list of turns, each a call of so many tokens and then a tool that takes so many seconds. What the
rollouts of a group take follows from their ids alone, so each loop gets the same work.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import aiohttp
import msgspec

from whippletree.engines.connect import connect
from whippletree.files import write_json
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import load_secret, mint
from whippletree.gateway.server import Parts, serving
from whippletree.protocols import AttemptOutcome, Store
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.store import open_store
from whippletree.types import Attempt, VerifierResult


class Turn(msgspec.Struct, frozen=True):
    """One call, `tokens` at most, and the tool after it.

    Example: Turn(tokens=24, tool_seconds=0.2)
    """

    tokens: int
    tool_seconds: float


class SamplerSpec(msgspec.Struct, frozen=True):
    """What the process needs. `slots`: rollouts at once; `seconds`: scale of the tools' times.

    Example: SamplerSpec(directory="/tmp/run", model="/tmp/model", engine_url="http://127.0.0.1:4", ready="/tmp/port.json")
    """

    directory: str
    model: str
    engine_url: str
    ready: str
    slots: int = 64
    seconds: float = 0.1


class Listening(msgspec.Struct, frozen=True):
    """The gateway's address. Example: Listening(url="http://127.0.0.1:40001")"""

    url: str


def workload(rollout_id: str, seconds: float) -> list[Turn]:
    """Turns of a rollout: 2 to 4 for most and up to 16 for a few (Pareto, a = 1.2); tools' times are log-normal."""
    draw = random.Random(rollout_id)
    turns = min(16, int(2 * draw.paretovariate(1.2)))
    return [Turn(tokens=draw.randint(8, 24), tool_seconds=seconds * draw.lognormvariate(0.0, 0.8)) for _ in range(turns)]


async def repeat(
    store: Store, url: str, secret: bytes, spec: SamplerSpec, attempt: Attempt, web: aiohttp.ClientSession
) -> None:
    """One rollout to its end. Every other member of a group succeeds."""
    headers = {"Authorization": f"Bearer {mint(secret, attempt.rollout_id, attempt.attempt)}"}
    messages = [{"role": "system", "content": "Work."}, {"role": "user", "content": attempt.rollout_id[:6]}]
    for number, turn in enumerate(workload(attempt.rollout_id, spec.seconds)):
        body = {"model": "policy", "messages": messages, "max_tokens": turn.tokens}
        async with web.post(f"{url}/v1/chat/completions", json=body, headers=headers) as reply:
            if reply.status != 200:
                raise SystemExit(f"the gateway answered {reply.status}: {await reply.text()}")
            message = (await reply.json())["choices"][0]["message"]
        messages += [{"role": "assistant", "content": message.get("content") or ""}, {"role": "user", "content": f"{number}"}]
        await asyncio.sleep(turn.tool_seconds)
    await asyncio.wrap_future(store.seal(attempt.rollout_id, attempt.attempt))
    reward = float(int(attempt.rollout_id[-2:]) % 2)
    done = msgspec.structs.replace(attempt, finished=attempt.started + 1.0, result=VerifierResult(reward=reward))
    await asyncio.wrap_future(store.finish(AttemptOutcome(attempt=done)))


async def serve(spec: SamplerSpec) -> None:
    """Until the process is ended."""
    directory = Path(spec.directory)
    secret = load_secret(directory / "secret")
    renderer = load_renderer(Path(spec.model), RenderingConfig(template="tiny"))
    with (
        open_store(directory / "store", instance="gateway") as records,
        open_store(directory / "store", instance="controller") as store,
    ):
        parts = Parts(store=records, engines=[connect("embedded", spec.engine_url)], renderer=renderer, secret=secret)
        connector = aiohttp.TCPConnector(limit=0)
        async with serving(GatewayConfig(), parts) as port, aiohttp.ClientSession(connector=connector) as web:
            url = f"http://127.0.0.1:{port}"
            write_json(Path(spec.ready), Listening(url=url))
            under_way: set[asyncio.Task[None]] = set()
            while True:
                for task in [task for task in under_way if task.done()]:
                    under_way.remove(task)
                    task.result()
                if room := spec.slots - len(under_way):
                    claimed = await asyncio.wrap_future(store.claim("controller/host-0", room))
                    under_way |= {asyncio.create_task(repeat(store, url, secret, spec, attempt, web)) for attempt in claimed}
                await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=SamplerSpec)))
