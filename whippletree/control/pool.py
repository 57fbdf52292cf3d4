"""A fixed number of pool hosts for one harness: assignment, loss and replacement.

    run(spec) ─► wait for a slot ─► host with the fewest tenants ─► Run ─► ... ─► Done ─► AgentEnd
                      ▲                                                            │
                      └───────────── a tenant ended, a host got ready ◄────────────┘
    keeper of each host: spawn ─► Ready ─► read Done until the socket ends ─► tenants lost ─► back off ─► spawn

Invariants (tests/control/test_pool.py):
- every run ends: with the harness's result, by its time-out, or with a cause;
- a host that dies gives each of its tenants the cause HOST_LOST and is started again; when it keeps dying, runs get a cause;
- a tenant that goes on after its time-out costs its host, not the run: the host takes no more tenants, another host is
  started in its place at once, and it is killed as soon as only such tenants are left in it;
- after `close`, or kill -9 of this process, no host and nothing that it started is left.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import sys
from pathlib import Path

from whippletree.control import lifeline
from whippletree.control.config import PoolConfig
from whippletree.control.guard import Guard
from whippletree.control.policy import AgentEnd, Restarts
from whippletree.control.supervisor import tail
from whippletree.control.wire import Done, Failed, Ready, Run, decode_report, encode
from whippletree.errors import HarnessError
from whippletree.protocols import AttemptSpec, HarnessResult
from whippletree.types import Cause, CauseClass, Struct

log = logging.getLogger(__name__)

LINE_LIMIT = 1 << 24  # bytes of one message


class HostStatus(Struct):
    """One host as it stands. `ready` is None while it imports its harness.

    Example: HostStatus(name="mini-swe-agent-0", tenants=3, starts=1)
    """

    name: str
    tenants: int
    starts: int
    ready: Ready | None = None
    condemned: bool = False
    error: str = ""


class Pool:
    """Runs attempts of one harness inside its hosts. Belongs to one event loop."""

    def __init__(
        self,
        harness: str,
        config: PoolConfig,
        log_directory: Path,
        *,
        grace: float,
        harness_directory: Path | None = None,
    ) -> None:
        """`harness` is a name for `load_harness`; hosts append their output to files in `log_directory`.

        `grace`: seconds that a tenant may go on after its time-out. `harness_directory`: where harnesses are installed.
        """
        self.harness = harness
        self.where = ("--harness-directory", str(harness_directory)) if harness_directory else ()
        self._config = config
        self._grace = grace
        self._changed = asyncio.Condition()
        self._guard = Guard()
        self._log_directory = log_directory
        self._stem = "".join(letter if letter.isalnum() else "-" for letter in harness)
        self._hosts: list[_Host] = []
        self._keepers: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Start all hosts, without waiting."""
        for number in range(self._config.hosts):
            self._add(f"{self._stem}-{number}")

    async def start(self) -> Ready:
        """Start all hosts, unless `begin` did, and wait for the first to be ready. Raises HarnessError when none gets ready."""
        if not self._hosts:
            self.begin()
        async with self._changed:
            await self._changed.wait_for(lambda: any(host.ready for host in self._hosts) or self.error)
        if self.error:
            await self.close()
            raise HarnessError(f"no pool host for {self.harness} got ready: {self.error}", "mend it, or choose another launch")
        return next(host.ready for host in self._hosts if host.ready)

    async def run(self, spec: AttemptSpec, timeout: float) -> AgentEnd:
        """One attempt, to its end or to `timeout` seconds after it got a slot. Cancelling abandons it."""
        host = await self._slot()
        if host is None:
            cause = Cause(
                cause=CauseClass.HARNESS,
                phase="agent",
                message=f"no pool host for {self.harness} stays up: {self.error}",
                next_step="look at the hosts' logs",
            )
            return AgentEnd(result=HarnessResult(exit_status="no_host"), cause=cause)
        tenant, ended = host.take(spec)
        try:
            return await asyncio.wait_for(ended, timeout)
        except TimeoutError:
            return AgentEnd(result=HarnessResult(exit_status="deadline"), timed_out=True)
        finally:
            host.leave(tenant, self._grace)

    def status(self) -> list[HostStatus]:
        """Every host."""
        return [host.status() for host in self._hosts]

    def _add(self, name: str) -> None:
        host = _Host(name, self, self._log_directory / f"{name}.log")
        self._hosts.append(host)
        keeper = asyncio.create_task(host.keep(), name=f"keeper-{name}")
        self._keepers.add(keeper)
        keeper.add_done_callback(self._keepers.discard)

    def replace(self, host: _Host) -> None:
        """Start another host in the place of one that is condemned and lives on until its other tenants are done."""
        self._hosts.remove(host)
        self._add(host.name)

    async def close(self) -> None:
        """End all hosts; runs under way end with the cause HOST_LOST."""
        keepers = list(self._keepers)
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        for host in self._hosts:
            host.error = host.error or "the pool is closed"
        await self.notify()
        await asyncio.to_thread(self._guard.close)

    @property
    def error(self) -> str:
        """Why no host will come back; "" as long as one may."""
        errors = [host.error for host in self._hosts]
        return errors[0] if errors and all(errors) else ""

    @property
    def config(self) -> PoolConfig:
        """The settings of this pool."""
        return self._config

    @property
    def capacity(self) -> int:
        """Attempts that all hosts together take at the same time."""
        return self._config.hosts * self._config.tenants

    @property
    def guard(self) -> Guard:
        """What kills the hosts should this process be killed."""
        return self._guard

    async def notify(self) -> None:
        """A slot may be free, or a host's state changed."""
        async with self._changed:
            self._changed.notify_all()

    async def _slot(self) -> _Host | None:
        """The open host with the fewest tenants; None when no host will come back."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.error or any(host.open for host in self._hosts))
        hosts = [host for host in self._hosts if host.open]
        return min(hosts, key=lambda host: host.load) if hosts else None


class _Host:
    """The pool's end of one host: its process, its tenants and the task that keeps it."""

    def __init__(self, name: str, pool: Pool, log_path: Path) -> None:
        self.name = name
        self.ready: Ready | None = None
        self.error = ""
        self._pool = pool
        self._log_path = log_path
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tenants: dict[int, asyncio.Future[AgentEnd]] = {}
        self._overdue: set[int] = set()
        self._condemned = False
        self._worked = True  # false once the harness refused to load in the first process
        self._numbers = itertools.count(1)
        self._starts = 0

    @property
    def load(self) -> int:
        """Tenants inside, abandoned ones included."""
        return len(self._tenants)

    @property
    def open(self) -> bool:
        """True when it takes another tenant."""
        return self.ready is not None and not self._condemned and self.load < self._pool.config.tenants

    def status(self) -> HostStatus:
        return HostStatus(
            name=self.name,
            tenants=self.load,
            starts=self._starts,
            ready=self.ready,
            condemned=self._condemned,
            error=self.error,
        )

    def take(self, spec: AttemptSpec) -> tuple[int, asyncio.Future[AgentEnd]]:
        """Start a tenant. The future always gets a value, unless the caller cancels it."""
        tenant = next(self._numbers)
        future = self._tenants[tenant] = asyncio.get_running_loop().create_future()
        if self._writer is not None:
            self._writer.write(encode(Run(tenant=tenant, spec=spec)))
        return tenant, future

    def leave(self, tenant: int, grace: float) -> None:
        """Its attempt is over; if the tenant still runs, it has `grace` seconds to notice."""
        if tenant in self._tenants:
            asyncio.get_running_loop().call_later(grace, self._condemn, tenant, self._starts)

    def _condemn(self, tenant: int, start: int) -> None:
        if tenant in self._tenants and start == self._starts:
            log.warning("%s: tenant %d goes on after its end; the host is replaced", self.name, tenant)
            self._overdue.add(tenant)
            if not self._condemned:
                self._condemned = True
                self._pool.replace(self)
            self._retire_if_useless()

    def _retire_if_useless(self) -> None:
        if self._condemned and self._overdue >= self._tenants.keys():
            self._kill()

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def keep(self) -> None:
        """Keep a host process alive until cancelled or out of restarts."""
        restarts = Restarts(self._pool.config.restart)
        while True:
            self._starts += 1
            problem, condemned = await self._live_once()
            if condemned:
                log.warning("%s: ended with the tenants that did not notice their end", self.name)
                return
            delay = restarts.next_delay(asyncio.get_running_loop().time()) if self._worked else None
            log.warning("%s: %s; %s", self.name, problem, "given up" if delay is None else f"started again in {delay:.1f} s")
            if delay is None:
                self.error = problem
                await self._pool.notify()
                return
            await asyncio.sleep(delay)

    async def _live_once(self) -> tuple[str, bool]:
        """One process from its start to its end: what ended it, and whether another host has its place already."""
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        since = self._log_path.stat().st_size if self._log_path.exists() else 0
        try:
            self._process, reader, self._writer = await self._spawn()
        except OSError as error:
            return f"it cannot be started: {error}", False
        try:
            problem = await self._listen(reader)
        finally:
            condemned = self._condemned
            await self._end(self._process)
        return f"{problem}\n{tail(self._log_path, since)}".strip(), condemned

    async def _spawn(self) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        with theirs, self._log_path.open("ab") as output:
            command = [sys.executable, "-u", "-m", "whippletree.control.pool_host", "--fd", str(theirs.fileno())]
            process = await asyncio.create_subprocess_exec(
                *command,
                "--parent",
                str(os.getpid()),
                "--harness",
                self._pool.harness,
                *self._pool.where,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # what can be imported here can be there
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._pool.guard.watch(process.pid)
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=LINE_LIMIT)
        return process, reader, writer

    async def _listen(self, reader: asyncio.StreamReader) -> str:
        """Handle the host's messages until it has no more; returns what went wrong."""
        limit = self._pool.config.ready_seconds
        try:
            async with asyncio.timeout(limit):  # wait_for would lose a cancellation that comes together with the line
                line = await reader.readline()
            while line:
                message = decode_report(line)
                if isinstance(message, Failed):
                    self._worked = self._starts > 1
                    return f"its harness cannot be loaded: {message.message}"
                self._take_in(message)
                await self._pool.notify()
                line = await reader.readline()
        except TimeoutError:
            return f"it did not load its harness within {limit:g} s"
        except (OSError, ValueError, HarnessError) as error:
            return f"its channel broke: {error}"
        return "it died"

    def _take_in(self, message: Ready | Done) -> None:
        if isinstance(message, Ready):
            self.ready = message
            log.info(
                "%s ready in %.1f s (%.1f CPU s, %.0f MB)", self.name, message.seconds, message.cpu_seconds, message.rss_mb
            )
            return
        future = self._tenants.pop(message.tenant, None)
        self._overdue.discard(message.tenant)
        if future is not None and not future.done():
            future.set_result(AgentEnd(result=message.result, cause=message.cause))
        self._retire_if_useless()

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Make sure that nothing of the host is left, then tell its tenants."""
        self.ready = None
        if self._writer is not None:
            self._writer.close()
        self._kill()
        await process.wait()
        await asyncio.to_thread(lifeline.kill_session, process.pid)
        self._pool.guard.forget(process.pid)
        lost, self._tenants = self._tenants, {}
        self._overdue.clear()
        for future in lost.values():
            if not future.done():
                future.set_result(_lost(self.name, process.returncode))
        await self._pool.notify()


def _lost(name: str, status: int | None) -> AgentEnd:
    cause = Cause(
        cause=CauseClass.HOST_LOST,
        phase="agent",
        message=f"pool host {name} ended with status {status} while the attempt was in it",
        next_step="the attempt is tried again; if it happens often, look at the host's log and at memory",
    )
    return AgentEnd(result=HarnessResult(exit_status="host_lost"), cause=cause)
