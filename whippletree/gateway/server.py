"""Running the gateway: listen, say where, serve until told to stop, leave nothing half recorded.

Invariants (tests/gateway/test_gateway_server.py):
- the ready file appears, whole, only once requests are answered;
- on SIGTERM or SIGINT calls under way are recorded as aborted before the process ends;
- an address that other machines reach is refused unless the configuration allows it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import web

from whippletree.errors import ConfigurationError
from whippletree.files import write_json
from whippletree.gateway.access import check_bind
from whippletree.gateway.app import build_app
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.peers import Peers
from whippletree.gateway.service import Gateway
from whippletree.gateway.wire import ReadyFile
from whippletree.protocols import Engine, Renderer, Store
from whippletree.traces import TracesConfig
from whippletree.types import EngineReport

SHUTDOWN_LIMIT = 5.0  # seconds for connections to end by themselves
HEADER_LIMIT = 65536  # bytes
BACKLOG = 4096  # connections
GC_THRESHOLD = 20_000  # new objects between two looks at the youngest ones


class Parts(msgspec.Struct, kw_only=True):
    """What the gateway works with; `run` makes them inside the event loop. `secret` is that of keys.load_secret.

    `reports`: what a probe found of an engine, by its name; calls are recorded with its source of logprobs. `probe`: grade the
    engines that nobody graded yet, in the background, with a few short requests. `traces`: which roles are trained, for the
    route that shows a rollout.
    """

    store: Store
    engines: Sequence[Engine]
    renderer: Renderer
    secret: bytes
    reports: dict[str, EngineReport] = {}
    probe: bool = False
    traces: TracesConfig = TracesConfig()


@asynccontextmanager
async def serving(
    config: GatewayConfig, parts: Parts, *, sockets: Sequence[socket.socket] = (), peers: Peers | None = None
) -> AsyncIterator[int]:
    """Listen while the body runs; yields the port. Raises ConfigurationError when the address cannot or may not be used.

    `sockets` listen already and are used instead of `host` and `port`; `peers` are the workers that share the first of them.
    """
    check_bind(config, config.host)
    gateway = Gateway(
        config,
        store=parts.store,
        engines=parts.engines,
        renderer=parts.renderer,
        reports=parts.reports,
    )
    runner = web.AppRunner(
        build_app(
            gateway,
            store=parts.store,
            renderer=parts.renderer,
            secret=parts.secret,
            peers=peers,
            traces=parts.traces,
        ),
        handler_cancellation=True,
        access_log=None,
        logger=_protocol_log(),
        shutdown_timeout=SHUTDOWN_LIMIT,
        max_field_size=HEADER_LIMIT,
        max_line_size=HEADER_LIMIT,
    )
    await runner.setup()
    try:
        await _listen(runner, config, sockets)
        if parts.probe:
            gateway.replicas.start()
        async with gateway.watch.watching():
            yield runner.addresses[0][1]
    finally:
        await gateway.close()
        await runner.cleanup()


async def _listen(runner: web.AppRunner, config: GatewayConfig, sockets: Sequence[socket.socket]) -> None:
    for listener in sockets:
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
    if sockets:
        return
    try:
        await web.TCPSite(runner, config.host, config.port, backlog=BACKLOG).start()
    except OSError as error:
        where = f"{config.host}:{config.port}"
        raise ConfigurationError(f"cannot listen on {where}: {error.strerror}", "choose another gateway.port") from error


def _protocol_log() -> logging.Logger:
    """Where the server library complains of what is no HTTP. Its texts quote what was sent, keys too: their kind is kept."""

    def kind_only(record: logging.LogRecord) -> bool:
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else "error"
        record.msg, record.args, record.exc_info = f"a connection was no HTTP that is served: {kind}", (), None
        return True

    log = logging.Logger("whippletree.gateway.protocol")
    log.parent = logging.getLogger(__name__)
    log.addFilter(kind_only)
    return log


async def serve(
    config: GatewayConfig, parts: Parts, *, ready_file: Path | None = None, stop: asyncio.Event | None = None
) -> None:
    """Serve until `stop` is set (or for ever). `ready_file` gets a ReadyFile as JSON once requests are answered."""
    async with serving(config, parts) as port:
        if ready_file is not None:
            write_json(ready_file, ReadyFile(port=port, pid=os.getpid()))
        await (stop or asyncio.Event()).wait()


def calm_collector() -> None:
    """For a process that serves: the garbage collector never looks again at what was made at the start, and less often at new
    objects. Calls leave many small objects and few cycles; with the default settings a quarter of the time went into looking.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 100)


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set while the running loop runs."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


@asynccontextmanager
async def owned(parts: Parts) -> AsyncIterator[Parts]:
    """What a process was started to serve, with a calm collector; at the end engines and store are closed."""
    calm_collector()
    try:
        yield parts
    finally:
        for engine in parts.engines:
            await engine.close()
        parts.store.close()


def run(config: GatewayConfig, parts: Callable[[], Parts], *, ready_file: Path | None = None) -> None:
    """Serve in this process, on uvloop, until SIGTERM or SIGINT; then close engines and store."""
    import uvloop

    async def main() -> None:
        stop = stop_on_signals()
        async with owned(parts()) as made:
            await serve(config, made, ready_file=ready_file, stop=stop)

    uvloop.run(main())
