"""An engine server as a process: its options, its ready file, its end.

Invariants (tests/engines/test_embedded_process.py, tests/engines/test_scripted_server.py):
- every setting is an option under its own name; a wrong one is named;
- the ready file is written once the server answers; SIGTERM, SIGINT and the parent's end stop it with status 0.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import uvloop
from aiohttp import web

from whippletree.configuration import Config, convert, field_docs
from whippletree.errors import ConfigurationError, WhippletreeError
from whippletree.files import write_json
from whippletree.types import Struct

C = TypeVar("C", bound=Config)
PARENT_CHECK_SECONDS = 0.5


class Ready(Struct):
    """Content of the ready file.

    Example: Ready(host="127.0.0.1", port=40123, pid=4711)
    """

    host: str
    port: int
    pid: int


class Server(Protocol):
    """What is served: the routes, and an end."""

    def app(self) -> web.Application:
        """The routes."""
        ...

    async def close(self) -> None:
        """End what is in flight."""
        ...


class Command(msgspec.Struct, Generic[C], frozen=True):
    """What the command line asked for. `parent`: the process whose end is this one's, 0 for none."""

    config: C
    ready_file: Path | None = None
    parent: int = 0


def read_command(kind: type[C], argv: Sequence[str], *, module: str, required: tuple[str, ...] = ()) -> Command[C]:
    """One option per field of `kind`, and the two that concern the process only. Fields that are tables take JSON."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    docs = field_docs(kind)
    defaults = kind()
    for field in msgspec.structs.fields(kind):
        default = getattr(defaults, field.name)
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            dest=field.name,
            type=_reader(default),
            default=msgspec.to_builtins(default),
            required=field.name in required,
            help=f"{docs[field.name]} [{default}]".replace("%", "%%"),
        )
    parser.add_argument("--ready-file", type=Path, help="Write host, port and pid there, as JSON, once the engine is ready.")
    parser.add_argument(
        "--exit-with-parent",
        type=int,
        nargs="?",
        const=os.getppid(),
        default=0,
        metavar="PID",
        help="End when the process that started this one ends; with its PID also where it ended before this was read.",
    )
    values = vars(parser.parse_args(argv))
    ready_file = values.pop("ready_file")
    parent = values.pop("exit_with_parent")
    try:
        return Command(convert(kind, values, "command line"), ready_file, parent)
    except WhippletreeError as error:
        parser.error(str(error))


def _reader(default: Any) -> Callable[[str], Any]:
    if isinstance(default, bool | msgspec.Struct):
        return _json
    return type(default)


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error


def serve(make: Callable[[], Server], where: Any, line: str, ready_file: Path | None = None, *, parent: int = 0) -> None:
    """Serve until SIGTERM, SIGINT or the end of process `parent` (0: none). `where` has the settings host and port; `line` is
    written once it serves, followed by the address. Raises ConfigurationError or EngineError."""
    try:
        uvloop.run(_serve(make, where, line, ready_file, parent))
    except OSError as error:
        raise ConfigurationError(
            f"cannot serve on {where.host}:{where.port}: {error.strerror}", "choose another port"
        ) from error


def report(run: Callable[[], None]) -> int:
    """Run to the end; an error of this package is one line and status 1."""
    try:
        run()
    except WhippletreeError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


async def _serve(make: Callable[[], Server], where: Any, line: str, ready_file: Path | None, parent: int) -> None:
    server = make()  # a signal that comes meanwhile ends the process at once
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None, shutdown_timeout=5.0)
    try:
        await runner.setup()
        site = web.TCPSite(runner, where.host, where.port, backlog=4096)
        await site.start()
        port = int(runner.addresses[0][1])
        if ready_file is not None:
            write_json(ready_file, Ready(host=where.host, port=port, pid=os.getpid()))
        sys.stdout.write(f"{line} on http://{where.host}:{port}\n")
        sys.stdout.flush()
        await _until_told(told, parent)
        await site.stop()
    finally:
        await server.close()
        await runner.cleanup()


async def _until_told(told: asyncio.Event, parent: int) -> None:
    """Wait until it is told to end or, when it is given, for the end of the parent process."""
    while not told.is_set():
        if parent and os.getppid() != parent:
            return
        try:
            await asyncio.wait_for(told.wait(), PARENT_CHECK_SECONDS if parent else None)
        except TimeoutError:
            continue
