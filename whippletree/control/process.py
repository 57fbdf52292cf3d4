"""The controller as a process of its own: `python -m whippletree.control SPEC.json`; the CLI and the supervisor start it so.

Invariants (tests/control/test_controller_process.py): SIGTERM and SIGINT end it cleanly with status 0; a wrong spec, or a
harness that cannot be loaded, ends it with a message and status 1, before it has claimed anything.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from whippletree.configuration import convert
from whippletree.control.attempt import Parts
from whippletree.control.controller import Controller
from whippletree.control.imaging import Imaging
from whippletree.control.keeping import GIB, Shelf
from whippletree.control.launch import Launchers
from whippletree.control.seal import GatewaySealer
from whippletree.control.spec import ControllerSpec
from whippletree.errors import ConfigurationError, WhippletreeError, words_of
from whippletree.files import write_json
from whippletree.gateway.keys import control_key, load_secret
from whippletree.store import StoreConfig, open_store

log = logging.getLogger(__name__)


class ControllerReady(msgspec.Struct, frozen=True, kw_only=True):
    """What the ready file holds. Example: ControllerReady(pid=4711, hosts=2, concurrency=16)"""

    pid: int
    hosts: int
    concurrency: int


def sandbox_prefix(directory: Path) -> str:
    """What the names of a run's sandboxes begin with: the same after a restart, and no other run's."""
    return f"wt-{hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:10]}-"


def gateway_address(url: str) -> tuple[str, int]:
    """(host, port) of a gateway URL. Raises ConfigurationError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(f"gateway_url {url!r}: {error}", "write it like http://127.0.0.1:8100") from error
    if parts.scheme != "http" or not parts.hostname or port is None:
        raise ConfigurationError(f"gateway_url {url!r} needs scheme http, host and port", "write it like http://127.0.0.1:8100")
    return parts.hostname, port


async def run(spec: ControllerSpec, stop: asyncio.Event) -> None:
    """Take and run rollouts until `stop` is set. Raises WhippletreeError when it cannot start or the store fails."""
    if spec.control.launch == "kubernetes":
        await _serve_kubernetes(spec, stop)
        return
    directory = Path(spec.directory)
    gateway = gateway_address(spec.gateway_url)
    launchers = Launchers(spec.harnesses, spec.control, directory / "logs")
    secret = load_secret(Path(spec.secret))
    with open_store(Path(spec.store), config=StoreConfig(durability="power"), instance="controller") as store:
        sealer = GatewaySealer(spec.gateway_url, control_key(secret), store)
        config = spec.control
        imaging = Imaging(spec.sandbox, wanted=config.images, at_once=config.images_at_once, variables=config.variables)
        try:
            await imaging.backing()
            await launchers.start()
            parts = Parts(
                store=store,
                sealer=sealer,
                launchers=launchers,
                config=config,
                sandbox=spec.sandbox,
                gateway=gateway,
                gateway_ports=spec.gateway_ports,
                secret=secret,
                model=spec.model,
                directory=directory,
                prefix=sandbox_prefix(directory),
                starting=asyncio.Semaphore(config.starts_at_once),
                imaging=imaging,
                shelf=Shelf(directory, config.snapshots_gb * GIB),
            )
            await _serve(Controller(parts, spec.worker), spec, stop)
        finally:
            await imaging.close()
            await launchers.close()
            sealer.close()


async def _serve_kubernetes(spec: ControllerSpec, stop: asyncio.Event) -> None:
    """The Kubernetes reconciler; what it needs is imported only for it."""
    try:
        from whippletree.control.kubernetes.serve import serve
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f'launch = "kubernetes" needs the module {error.name}', "install whippletree[kubernetes]"
        ) from error
    await serve(spec, stop)


async def _serve(controller: Controller, spec: ControllerSpec, stop: asyncio.Event) -> None:
    """Run the controller; say that it is ready once it has taken over."""
    work = asyncio.create_task(controller.run())
    stopped = asyncio.create_task(stop.wait())
    started = asyncio.create_task(controller.started.wait())
    try:
        await asyncio.wait({work, started}, return_when=asyncio.FIRST_COMPLETED)
        if started.done() and spec.ready_file:
            hosts = sum(pool.config.hosts for pool in controller.parts.launchers.pools)
            write_json(Path(spec.ready_file), ControllerReady(pid=os.getpid(), hosts=hosts, concurrency=controller.concurrency))
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        controller.stop()
        stopped.cancel()
        started.cancel()
        await work


def main(argv: list[str]) -> int:
    """Run from a spec file until a signal; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if len(argv) != 1:
        sys.stderr.write("usage: python -m whippletree.control SPEC.json\n")
        return 2
    try:
        asyncio.run(_until_signal(read_spec(Path(argv[0]))))
    except WhippletreeError as error:
        sys.stderr.write(f"controller: {error}\n")
        return 1
    return 0


def read_spec(path: Path) -> ControllerSpec:
    """A controller's spec from a JSON file. Raises ConfigurationError."""
    try:
        data = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {words_of(error)}", "give a controller's spec as JSON") from error
    return convert(ControllerSpec, data, str(path))


async def _until_signal(spec: ControllerSpec) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run(spec, stop)
