"""Inference servers that are registered while the gateway runs, the same for every worker.

    add, clear ─► store (small value) ─► every worker: looks now and then ─► Replicas: new ones in, missing ones retired

What blocks: `add` and `clear`, until the store has it and this worker has looked.
Invariants (tests/gateway/test_rollout_api_models.py):
- a server that is added again is there once; one whose URL changed is another one;
- a retired server gets no new call, what it samples goes on to its end, and then its connections are closed;
- what was added is there again after a restart; those of the configuration are never removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from whippletree.engines.connect import connect
from whippletree.errors import ConfigurationError, RequestError, StoreError
from whippletree.gateway.replicas import Replica, Replicas
from whippletree.gateway.rollout_api.wire import ModelEndpoint
from whippletree.protocols import Engine, Store

logger = logging.getLogger(__name__)

META = "model_endpoints"
LOOK_SECONDS = 1.0
LIST = list[ModelEndpoint]


class Endpoints:
    """The registered servers of one worker. `model`: the name under which they serve the policy."""

    def __init__(self, store: Store, replicas: Replicas, model: str) -> None:
        self._store = store
        self._replicas = replicas
        self._model = model
        self._made: dict[ModelEndpoint, Replica] = {}
        self._turn = asyncio.Lock()

    async def add(self, wanted: Sequence[ModelEndpoint]) -> LIST:
        """Register servers; all that are registered now. Raises RequestError (400) for an address that is none."""
        for endpoint in wanted:
            self._client_of(endpoint)
        async with self._turn:
            named = {endpoint.name: endpoint for endpoint in [*await self.wanted(), *wanted]}
            await self._save(list(named.values()))
            return await self._apply()

    async def clear(self) -> LIST:
        """Remove every registered server."""
        async with self._turn:
            await self._save([])
            return await self._apply()

    async def wanted(self) -> LIST:
        """What is registered, as the store has it."""
        text = await asyncio.to_thread(self._store.meta, META)
        return msgspec.json.decode(text, type=LIST) if text else []

    async def follow(self) -> None:
        """Do as the store says, until cancelled: another worker may have been asked."""
        while True:
            try:
                async with self._turn:
                    await self._apply()
            except StoreError as error:
                logger.warning("registered servers could not be looked up: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def _save(self, endpoints: LIST) -> None:
        await asyncio.wrap_future(self._store.set_meta(META, msgspec.json.encode(endpoints).decode()))

    async def _apply(self) -> LIST:
        wanted = await self.wanted()
        for endpoint in [known for known in self._made if known not in wanted]:
            self._replicas.retire(self._made.pop(endpoint))
        for endpoint in wanted:
            if endpoint not in self._made:
                self._made[endpoint] = self._replicas.add(self._client_of(endpoint))
        return wanted

    def _client_of(self, endpoint: ModelEndpoint) -> Engine:
        try:
            return connect(endpoint.kind, endpoint.url, model=endpoint.model or self._model, name=endpoint.name)
        except ConfigurationError as error:
            raise RequestError(error.cause, error.next_step) from error
