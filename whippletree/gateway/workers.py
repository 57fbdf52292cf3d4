"""Several gateway processes behind one port: a small parent that owns the sockets, and workers that serve them.

    parent ── binds the shared port and one port per worker, forks workers, forks a new one where one died
      ├─ worker 0: accepts on the shared port and on its own        every rollout has one owner (ownership.py);
      └─ worker 1: accepts on the shared port and on its own        a request at another worker is forwarded (peers.py)

Who blocks whom: a client of a dead worker waits in the backlog of a socket that the parent still holds, until the new worker
accepts. The parent waits for workers and signals only. A worker ends when the parent's end of its lifeline closes.
Invariants (tests/gateway/test_gateway_workers.py):
- no connection is refused while a worker is being replaced, and every acknowledged call is in the store;
- the ready file appears once every worker serves; nothing is left when the parent ends, however it ends;
- a worker that cannot start ends the parent, with the worker's exit code.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec
import uvloop

from whippletree.errors import ConfigurationError, WhippletreeError
from whippletree.files import write_json
from whippletree.gateway.access import check_bind
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.peers import Peers
from whippletree.gateway.server import Parts, owned, serving, stop_on_signals
from whippletree.gateway.wire import ReadyFile

READY_LIMIT = 120.0  # seconds for a first worker to serve
STOP_LIMIT = 20.0  # seconds for a worker to record what is under way
RESTART_PAUSE = 0.2  # seconds
ENDING = (signal.SIGTERM, signal.SIGINT)
BACKLOG = 4096

Serve = Callable[["Place", Callable[[], None]], None]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker stands: its number, the sockets it accepts on, everybody's own ports, the shared one. `lifeline` is a
    file descriptor that becomes readable when the parent has ended."""

    number: int
    ports: tuple[int, ...]
    shared_port: int
    sockets: tuple[socket.socket, ...]
    lifeline: int


def bind(host: str, port: int) -> socket.socket:
    """A listening socket that workers inherit. Raises ConfigurationError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror}", "choose another gateway.port or gateway.worker_ports"
        ) from error
    return listener


class Workers:
    """The parent. `serve(place, ready)` runs in each worker process: it calls `ready` once it serves, and returns when it was
    told to stop (SIGTERM, or the lifeline)."""

    def __init__(self, config: GatewayConfig, serve: Serve) -> None:
        self._serve = serve
        self._shared = bind(config.host, config.port)
        given = config.worker_ports or (0,) * config.workers
        self._own = [bind(config.host, port) for port in given[: config.workers]]
        self._context = multiprocessing.get_context("fork")
        self._lifeline_out, self._lifeline_in = os.pipe()
        self._running: dict[int, BaseProcess] = {}
        self._stopping = False

    @property
    def port(self) -> int:
        """The shared port."""
        return int(self._shared.getsockname()[1])

    @property
    def ports(self) -> tuple[int, ...]:
        """The workers' own ports, by number."""
        return tuple(int(listener.getsockname()[1]) for listener in self._own)

    def run(self, ready_file: Path | None) -> int:
        """Serve until SIGTERM or SIGINT; the exit code."""
        wake_out, wake_in = self._context.Pipe(duplex=False)
        handlers = {number: signal.signal(number, lambda *_: wake_in.send(None)) for number in ENDING}
        try:
            code = self._start_all(wake_out, ready_file)
            while code is None:
                code = self._watch(wake_out)
            return code
        finally:
            self._stop_all()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for listener in (self._shared, *self._own):
                listener.close()
            os.close(self._lifeline_in)
            os.close(self._lifeline_out)

    def _start_all(self, wake: Connection, ready_file: Path | None) -> int | None:
        waiting = {self._start(number): number for number in range(len(self._own))}
        deadline = time.monotonic() + READY_LIMIT
        while waiting:
            sentinels = [process.sentinel for process in self._running.values()]
            found = wait([wake, *waiting, *sentinels], max(0.0, deadline - time.monotonic()))
            if not found:
                raise ConfigurationError(f"a gateway worker did not serve within {READY_LIMIT:g} s", "look at its log")
            if wake in found:
                return 0
            for pipe in [item for item in found if isinstance(item, Connection) and item in waiting]:
                try:
                    pipe.recv()
                except EOFError:
                    self._running[waiting[pipe]].join()
                    return self._running[waiting[pipe]].exitcode or 1
                del waiting[pipe]
        if ready_file is not None:
            write_json(ready_file, ReadyFile(port=self.port, pid=os.getpid(), workers=self.ports))
        return None

    def _watch(self, wake: Connection) -> int | None:
        """Wait for a signal (0) or a dead worker (None once it was replaced)."""
        by_sentinel = {process.sentinel: number for number, process in self._running.items()}
        found = wait([wake, *by_sentinel])
        if wake in found:
            return 0
        for number in [by_sentinel[item] for item in found if isinstance(item, int)]:
            self._running[number].join()
            time.sleep(RESTART_PAUSE)
            self._start(number)
        return None

    def _start(self, number: int) -> Connection:
        """Fork a worker; the pipe that tells when it serves."""
        told, tell = self._context.Pipe(duplex=False)
        place = Place(
            number=number,
            ports=self.ports,
            shared_port=self.port,
            sockets=(self._shared, self._own[number]),
            lifeline=self._lifeline_out,
        )
        process = self._context.Process(target=self._worker, args=(place, tell), name=f"gateway-{number}")
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # the worker must not take a signal as the parent does
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        tell.close()
        self._running[number] = process
        return told

    def _worker(self, place: Place, tell: Connection) -> None:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        os.close(self._lifeline_in)
        try:
            self._serve(place, lambda: tell.send(None))
        except WhippletreeError as error:
            os.write(2, f"gateway worker {place.number}: {error}\n".encode())
            raise SystemExit(2) from None

    def _stop_all(self) -> None:
        for process in self._running.values():
            process.terminate()
        deadline = time.monotonic() + STOP_LIMIT
        for process in self._running.values():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def run(config: GatewayConfig, parts: Callable[[int], Parts], *, ready_file: Path | None = None) -> int:
    """Serve with `config.workers` processes until SIGTERM or SIGINT; the exit code. `parts(number)` is called in each of them.

    Raises ConfigurationError when an address cannot or may not be used.
    """
    check_bind(config, config.host)

    def serve(place: Place, ready: Callable[[], None]) -> None:
        uvloop.run(_serve_worker(config, parts, place, ready))

    return Workers(config, serve).run(ready_file)


async def _serve_worker(config: GatewayConfig, parts: Callable[[int], Parts], place: Place, ready: Callable[[], None]) -> None:
    stop = stop_on_signals()
    loop = asyncio.get_running_loop()
    loop.add_reader(place.lifeline, stop.set)
    async with owned(parts(place.number)) as made:
        peers = Peers(place.number, config.host, place.ports, made.secret)
        try:
            async with serving(config, made, sockets=place.sockets, peers=peers):
                ready()
                await stop.wait()
        finally:
            loop.remove_reader(place.lifeline)
            await peers.close()
