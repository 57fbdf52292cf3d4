"""Running the gateway: listen, say where, serve until told to stop, leave nothing half recorded.

Invariants (tests/gateway/test_gateway_server.py):
- the ready file appears, whole, only once requests are answered;
- on SIGTERM or SIGINT calls under way are recorded as aborted before the process ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import web

from whippletree.errors import ConfigurationError
from whippletree.files import write_json
from whippletree.gateway.app import build_app
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.dialects.chat import ChatDialect
from whippletree.gateway.service import Gateway
from whippletree.gateway.wire import ReadyFile
from whippletree.protocols import Engine, Renderer, Store
from whippletree.types import EngineReport

SHUTDOWN_LIMIT = 5.0  # seconds for connections to end by themselves
HEADER_LIMIT = 65536  # bytes


class Parts(msgspec.Struct, kw_only=True):
    """What the gateway works with; `run` makes them inside the event loop. `secret` is that of keys.load_secret.

    `reports`: what a probe found of an engine, by its name; calls are recorded with its source of logprobs.
    """

    store: Store
    engines: Sequence[Engine]
    renderer: Renderer
    secret: bytes
    reports: dict[str, EngineReport] = {}


@asynccontextmanager
async def serving(config: GatewayConfig, parts: Parts) -> AsyncIterator[int]:
    """Listen while the body runs; yields the port. Raises ConfigurationError when the address cannot be used."""
    dialect = ChatDialect()
    gateway = Gateway(
        config,
        store=parts.store,
        engines=parts.engines,
        renderer=parts.renderer,
        dialects={dialect.name: dialect},
        reports=parts.reports,
    )
    runner = web.AppRunner(
        build_app(gateway, parts.secret),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=SHUTDOWN_LIMIT,
        max_field_size=HEADER_LIMIT,
        max_line_size=HEADER_LIMIT,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, config.host, config.port, backlog=4096)
        try:
            await site.start()
        except OSError as error:
            where = f"{config.host}:{config.port}"
            raise ConfigurationError(f"cannot listen on {where}: {error.strerror}", "choose another gateway.port") from error
        yield runner.addresses[0][1]
    finally:
        await gateway.close()
        await runner.cleanup()


async def serve(
    config: GatewayConfig, parts: Parts, *, ready_file: Path | None = None, stop: asyncio.Event | None = None
) -> None:
    """Serve until `stop` is set (or for ever). `ready_file` gets a ReadyFile as JSON once requests are answered."""
    async with serving(config, parts) as port:
        if ready_file is not None:
            write_json(ready_file, ReadyFile(port=port, pid=os.getpid()))
        await (stop or asyncio.Event()).wait()


def run(config: GatewayConfig, parts: Callable[[], Parts], *, ready_file: Path | None = None) -> None:
    """Serve in this process, on uvloop, until SIGTERM or SIGINT; then close engines and store."""
    import uvloop

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        made = parts()
        try:
            await serve(config, made, ready_file=ready_file, stop=stop)
        finally:
            for engine in made.engines:
                await engine.close()
            made.store.close()

    uvloop.run(main())
