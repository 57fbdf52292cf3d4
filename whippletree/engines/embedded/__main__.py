"""`python -m whippletree.engines.embedded --model DIR`: the embedded engine as a process of its own.

Prints one line when it is ready. SIGTERM and SIGINT abort what is in flight and end it with status 0.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop
from aiohttp import web

from whippletree.configuration import convert, field_docs
from whippletree.engines.embedded.config import EmbeddedConfig
from whippletree.engines.embedded.server import EmbeddedServer
from whippletree.errors import ConfigurationError, WhippletreeError
from whippletree.files import write_json
from whippletree.types import Struct

PARENT_CHECK_SECONDS = 0.5


class Ready(Struct):
    """Content of the ready file.

    Example: Ready(host="127.0.0.1", port=40123, pid=4711)
    """

    host: str
    port: int
    pid: int


def main(argv: Sequence[str] | None = None) -> int:
    """Run the engine until it is told to end. Returns the exit status."""
    config, ready_file, exit_with_parent = _arguments(sys.argv[1:] if argv is None else argv)
    try:
        run(config, ready_file, parent=os.getppid() if exit_with_parent else 0)
    except WhippletreeError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def run(config: EmbeddedConfig, ready_file: Path | None = None, *, parent: int = 0) -> None:
    """Serve until SIGTERM, SIGINT or the end of process `parent` (0: none). Raises ConfigurationError or EngineError."""
    try:
        uvloop.run(_serve(config, ready_file, parent))
    except OSError as error:
        where = f"{config.host}:{config.port}"
        raise ConfigurationError(f"cannot serve on {where}: {error.strerror}", "choose another port") from error


def _arguments(argv: Sequence[str]) -> tuple[EmbeddedConfig, Path | None, bool]:
    """One option per field of EmbeddedConfig, and the two that concern the process only."""
    parser = argparse.ArgumentParser(prog="python -m whippletree.engines.embedded", description=__doc__)
    docs = field_docs(EmbeddedConfig)
    defaults = EmbeddedConfig()
    for field in msgspec.structs.fields(EmbeddedConfig):
        default = getattr(defaults, field.name)
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            dest=field.name,
            type=type(default),
            default=default,
            required=field.name == "model",
            help=f"{docs[field.name]} [{default}]".replace("%", "%%"),
        )
    parser.add_argument("--ready-file", type=Path, help="Write host, port and pid there, as JSON, once the engine is ready.")
    parser.add_argument("--exit-with-parent", action="store_true", help="End when the process that started this one ends.")
    values = vars(parser.parse_args(argv))
    ready_file = values.pop("ready_file")
    exit_with_parent = values.pop("exit_with_parent")
    try:
        return convert(EmbeddedConfig, values, "command line"), ready_file, exit_with_parent
    except WhippletreeError as error:
        parser.error(str(error))


async def _serve(config: EmbeddedConfig, ready_file: Path | None, parent: int) -> None:
    server = EmbeddedServer(config)
    runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None, shutdown_timeout=5.0)
    try:
        await runner.setup()
        site = web.TCPSite(runner, config.host, config.port, backlog=4096)
        await site.start()
        port = int(runner.addresses[0][1])
        if ready_file is not None:
            write_json(ready_file, Ready(host=config.host, port=port, pid=os.getpid()))
        sys.stdout.write(f"embedded engine serves {config.model} on http://{config.host}:{port}\n")
        sys.stdout.flush()
        await _until_told(parent)
        await site.stop()
    finally:
        await server.close()
        await runner.cleanup()


async def _until_told(parent: int) -> None:
    """Wait for SIGTERM, SIGINT or, when it is given, the end of the parent process."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    while not told.is_set():
        if parent and os.getppid() != parent:
            return
        try:
            await asyncio.wait_for(told.wait(), PARENT_CHECK_SECONDS if parent else None)
        except TimeoutError:
            continue


if __name__ == "__main__":
    sys.exit(main())
