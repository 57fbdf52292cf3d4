"""A gateway without HTTP, on real parts: store, renderer, scripted engines. `Direct.ask` is one request of a harness."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.dialects import Target
from whippletree.gateway.dialects.chat import ChatDialect
from whippletree.gateway.digest import fields_of, request_digest
from whippletree.gateway.keys import AttemptKey
from whippletree.gateway.live import LiveCall, Reply
from whippletree.gateway.recording import Incoming
from whippletree.gateway.roles import Hints
from whippletree.gateway.service import Gateway
from whippletree.protocols import StreamDelta
from whippletree.store import open_store
from whippletree.traces import load_trace
from whippletree.types import Call, RolloutSpec, Sampling

CHAT = ChatDialect()
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]


class Direct:
    """One gateway, and a store with the running rollouts r0, r1, r2."""

    def __init__(self, gateway: Gateway, store: Any, engines: Sequence[Any], renderer: Any) -> None:
        self.gateway, self.store, self.engines, self.renderer = gateway, store, engines, renderer

    def incoming(
        self, messages: Sequence[Any], *, hints: Hints | None = None, retry: bool = False, change: Any = None, **fields: Any
    ) -> Incoming:
        """A request in the chat dialect. `change`: fields of the internal form that this dialect cannot say."""
        body = msgspec.json.encode({"model": "policy", "messages": messages, "tools": TOOLS, **fields})
        request = CHAT.parse(body, Target())
        raw = fields_of(body)
        digest = request_digest(CHAT, raw, Target())
        if change:
            request = msgspec.structs.replace(request, **change)
            digest += repr(sorted(change.items()))
        return Incoming(
            dialect=CHAT,
            body=body,
            fields=raw,
            request=request,
            digest=digest,
            received=time.time(),
            retry=retry,
            hints=hints or Hints(),
        )

    async def submit(self, messages: Sequence[Any], *, rollout: str = "r0", **fields: Any) -> tuple[Any, LiveCall]:
        """A request under way, followed by nobody yet."""
        session = await self.gateway.session(AttemptKey(rollout_id=rollout, attempt=1))
        return session, await self.gateway.submit(session, self.incoming(messages, **fields))

    async def ask(self, messages: Sequence[Any], *, deliver: bool = True, **fields: Any) -> Reply:
        """One request to its end, delivered."""
        session, live = await self.submit(messages, **fields)
        session.users += 1
        live.join()
        try:
            reply = await asyncio.shield(live.done)
        finally:
            live.leave()
            session.users -= 1
        if deliver:
            self.gateway.deliver(session, reply)
        return reply

    async def follow(self, messages: Sequence[Any], **fields: Any) -> tuple[Reply, list[StreamDelta]]:
        """One request to its end, with all deltas, delivered."""
        session, live = await self.submit(messages, **fields)
        live.join()
        deltas = [delta async for delta in live.follow(10.0) if delta is not None]
        reply = await live.done
        live.leave()
        self.gateway.deliver(session, reply)
        return reply, deltas

    def calls(self, rollout: str = "r0") -> list[Call]:
        """What is recorded."""
        found: list[Call] = self.store.calls(rollout, 1)
        return found

    def trace(self, rollout: str = "r0") -> Any:
        """The trace of what is recorded."""
        return load_trace(self.store, self.store.rollout(rollout))

    def ids(self, call: Call) -> tuple[list[int], list[int]]:
        """Prompt and sampled ids of a call, put together from the store."""
        node = self.trace(call.rollout_id).node(call.call_id)
        return node.prompt_ids.tolist(), node.sampled_ids.tolist()

    async def settled(self) -> None:
        """Deliveries are written."""
        for session in list(self.gateway._sessions.values()):
            if session.marks:
                await asyncio.wait(set(session.marks))


@asynccontextmanager
async def direct(
    directory: Path,
    renderer: Any,
    engines: Sequence[Any],
    *,
    sampling: Sampling | None = None,
    reports: Mapping[str, Any] | None = None,
    **config: Any,
) -> AsyncIterator[Direct]:
    """A gateway for the body's time."""
    store = open_store(directory)
    try:
        fixed = sampling or Sampling(max_tokens=400, seed=1)
        same = {"group_id": "g", "source": "s", "task_id": "t", "task_path": "/t", "harness": "h", "sampling": fixed}
        store.create_rollouts([RolloutSpec(rollout_id=f"r{n}", **same) for n in range(3)]).result()
        store.claim("worker", 3).result()
        gateway = Gateway(
            GatewayConfig(**config), store=store, engines=list(engines), renderer=renderer, reports=dict(reports or {})
        )
        try:
            yield Direct(gateway, store, engines, renderer)
        finally:
            await gateway.close()
    finally:
        store.close()
