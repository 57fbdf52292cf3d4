"""One attempt at a rollout, from a cold sandbox to an outcome.

    boot ─► setup ─► agent ─► seal ─► verify ─► cleanup
    task,   files    the      no      reward    sandbox gone
    sandbox          harness  more
                              calls

Every phase has its own limit and is recorded with its seconds. A harness that ran out of time or steps did its job: it is
verified. Everything else that goes wrong is a cause with the reward left None.

Invariants (tests/control/test_attempt.py):
- `run` returns exactly one outcome, with a reward or a cause, and raises nothing, also when it is cancelled in any phase;
- no call is accepted once `seal` has begun, and nothing of the agent runs while the verifier judges;
- when `run` returns the sandbox is gone, or its cleanup ran past its own limit and the record says so;
- the attempt's key is in no record.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from whippletree import sandboxes
from whippletree.control.config import ControlConfig
from whippletree.control.launch import HIDDEN, KILL_SECONDS, Agent, Launcher, Launchers
from whippletree.control.policy import MESSAGE_LIMIT, AgentEnd, SealReport, judge
from whippletree.errors import ConfigurationError, HarnessError, SandboxError, TaskError, WhippletreeError
from whippletree.gateway.keys import mint
from whippletree.gateway.ownership import owner
from whippletree.protocols import AttemptSpec, SandboxHandle, Store
from whippletree.sandboxes.config import SandboxConfig
from whippletree.tasks import Task, load_task
from whippletree.tasks.verifier import verify
from whippletree.types import Attempt, Cause, CauseClass, Event, Phase, RolloutSpec, VerifierResult

log = logging.getLogger(__name__)

INTERRUPTIBLE = ("", "boot", "setup", "agent")  # later phases are short, and their tokens are paid for
INNER_PORT = 8000  # where the gateway is reached on 127.0.0.1 inside an isolated sandbox
VERIFY_SLACK = 15.0  # seconds beyond the verifier's own limit, for copying tests in and the reward out

_BY_ERROR: tuple[tuple[type[WhippletreeError], CauseClass], ...] = (
    (TaskError, CauseClass.TASK),
    (SandboxError, CauseClass.SANDBOX),
    (HarnessError, CauseClass.HARNESS),
    (ConfigurationError, CauseClass.CONFIGURATION),
)
_BY_PHASE = {
    "boot": CauseClass.SANDBOX,
    "setup": CauseClass.HARNESS,
    "agent": CauseClass.HARNESS,
    "seal": CauseClass.GATEWAY,
    "verify": CauseClass.VERIFIER,
}


class Sealer(Protocol):
    """Closes attempts at the gateway."""

    async def seal(self, rollout_id: str, attempt: int, limit: float, *, crashed: bool) -> SealReport:
        """No further call is accepted once this returns, `limit` seconds later at most. `crashed`: find out who is to blame."""
        ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What all attempts of a controller share. `gateway` is (host, port), `gateway_ports` the own
    ports of its workers, where there are several; `prefix` begins the names of its sandboxes."""

    store: Store
    sealer: Sealer
    launchers: Launchers
    config: ControlConfig
    sandbox: SandboxConfig
    gateway: tuple[str, int]
    gateway_ports: tuple[int, ...] = ()
    secret: bytes
    model: str
    directory: Path
    prefix: str
    starting: asyncio.Semaphore


class _Ended(Exception):
    """A phase found the cause that ends the attempt."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


def slug(rollout_id: str) -> str:
    """A name for paths and processes: readable, safe, and different for different ids."""
    safe = re.sub(r"[^A-Za-z0-9_-]+", "-", rollout_id)[:24]
    return f"{safe}-{hashlib.sha256(rollout_id.encode()).hexdigest()[:8]}"


class AttemptRun:
    """One attempt under way."""

    def __init__(self, parts: Parts, spec: RolloutSpec, attempt: Attempt) -> None:
        self.parts = parts
        self.spec = spec
        self.attempt = attempt
        self.phase = ""
        self.key = mint(parts.secret, spec.rollout_id, attempt.attempt)
        self._phases: list[Phase] = []
        self._sandbox: sandboxes.Box | None = None
        self._exit_status = ""

    @property
    def interruptible(self) -> bool:
        """True while cancelling wastes little: the agent has not ended yet."""
        return self.phase in INTERRUPTIBLE

    async def run(self) -> Attempt:
        """The attempt with its end: phases, and a result with a reward or a cause."""
        result: VerifierResult | None = None
        cause: Cause | None = None
        try:
            result = await self._work()
            cause = result.cause if result.reward is None else None
        except asyncio.CancelledError:
            cause = self._cause(CauseClass.CANCELLED, "the attempt was stopped", "it is tried again")
        except _Ended as end:
            cause = end.cause
        except WhippletreeError as error:
            kind = next((kind for type_, kind in _BY_ERROR if isinstance(error, type_)), _BY_PHASE[self.phase])
            cause = self._cause(kind, error.cause, error.next_step)
        except Exception as error:
            log.exception("%s attempt %d: unexpected error in phase %s", self.spec.rollout_id, self.attempt.attempt, self.phase)
            cause = self._cause(_BY_PHASE[self.phase], f"unexpected {error!r}", "the controller's log has the traceback")
        await to_the_end(self._clean_up())
        if result is not None and result.reward is None and cause is None:
            cause = self._cause(CauseClass.VERIFIER, "the verifier gave neither a reward nor a cause", "mend the verifier")
        return msgspec.structs.replace(
            self.attempt,
            finished=time.time(),
            phases=tuple(self._phases),
            result=result,
            cause=self._hide(cause),
            exit_status=self._exit_status,
            sealed=True,
            sandbox=_name(self._sandbox.handle) if self._sandbox else "",
        )

    async def _work(self) -> VerifierResult:
        limits = self.parts.config.deadlines
        async with self.parts.starting, self._in("boot", limits.boot):
            launcher, binding = self.parts.launchers.find(self.spec)
            task = await asyncio.to_thread(load_task, Path(self.spec.task_path))
            handle = await self._boot(task, launcher)
        timeout = min(limits.agent, task.agent_timeout)
        spec = self._attempt_spec(task, handle, launcher.inside, timeout, binding.settings)
        async with self._in("setup", limits.setup):
            agent = await launcher.setup(spec, self._box)
        end = await self._run_agent(agent, timeout, launcher.slack)
        await self._seal(end)
        return await self._verify(task)

    async def _boot(self, task: Task, launcher: Launcher) -> SandboxHandle:
        name = f"{self.parts.prefix}{slug(self.spec.rollout_id)}-{self.attempt.attempt}"
        port = INNER_PORT if launcher.inside else 0
        spec = msgspec.structs.replace(task.sandbox_spec(name, gateway_port=port), read_only=launcher.read_only)
        self._sandbox = sandboxes.create(self.parts.sandbox, spec, gateway=self._gateway)
        return await self._sandbox.start()

    @property
    def _gateway(self) -> tuple[str, int]:
        """The gateway worker that owns this rollout, so that nothing has to be forwarded."""
        host, port = self.parts.gateway
        ports = self.parts.gateway_ports
        return host, ports[owner(self.spec.rollout_id, len(ports))] if ports else port

    @property
    def _box(self) -> sandboxes.Box:
        if self._sandbox is None:
            raise SandboxError("the attempt has no sandbox yet")
        return self._sandbox

    def _attempt_spec(
        self, task: Task, handle: SandboxHandle, inside: bool, timeout: float, settings: dict[str, object]
    ) -> AttemptSpec:
        host, port = self._box.gateway if inside else self._gateway
        directory = self.parts.directory / "attempts" / slug(self.spec.rollout_id) / str(self.attempt.attempt)
        directory.mkdir(parents=True, exist_ok=True)
        return AttemptSpec(
            rollout_id=self.spec.rollout_id,
            attempt=self.attempt.attempt,
            instruction=task.instruction,
            base_url=f"http://{f'[{host}]' if ':' in host else host}:{port}/v1",
            api_key=self.key,
            model=self.parts.model,
            workdir=handle.workdir,
            output_dir=str(directory),
            timeout=timeout,
            settings=settings,
            sandbox=handle,
        )

    async def _run_agent(self, agent: Agent, timeout: float, slack: float) -> AgentEnd:
        async with self._in("agent", timeout + slack):
            end = await agent.run(timeout)
            self._exit_status = end.result.exit_status
        return end

    async def _seal(self, end: AgentEnd) -> None:
        """Close the attempt at the gateway, end what the agent left running, and decide whether it can be verified."""
        limit = self.parts.config.deadlines.seal
        async with self._in("seal", limit + 2 * KILL_SECONDS):
            report = await self.parts.sealer.seal(self.spec.rollout_id, self.attempt.attempt, limit, crashed=end.result.crashed)
            calls = await asyncio.to_thread(self.parts.store.calls, self.spec.rollout_id, self.attempt.attempt)
            if cause := judge(end, report, calls):
                raise _Ended(cause)
            await self._kill_all()

    async def _kill_all(self) -> None:
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await self._box.kill_all()
        except TimeoutError as error:
            raise SandboxError(f"its processes did not end within {KILL_SECONDS:g} s") from error

    async def _verify(self, task: Task) -> VerifierResult:
        limit = min(self.parts.config.deadlines.verify, task.verifier_timeout)
        async with self._in("verify", limit + VERIFY_SLACK):
            return await verify(task, self._box, timeout=limit)

    async def _clean_up(self) -> None:
        if self._sandbox is None:
            return
        limit = self.parts.config.deadlines.cleanup
        try:
            async with self._in("cleanup", limit):
                await self._sandbox.stop()
        except _Ended:
            log.error("%s: its sandbox did not end within %g s; `clean` removes it", self.attempt.rollout_id, limit)

    @asynccontextmanager
    async def _in(self, phase: str, limit: float) -> AsyncIterator[None]:
        """Time a phase and hold it to its limit (seconds)."""
        self.phase = phase
        started, begin = time.time(), time.monotonic()
        scope = asyncio.timeout(limit)
        try:
            async with scope:
                yield
        except TimeoutError as error:
            if not scope.expired():
                raise
            kind = CauseClass.VERIFIER if phase == "verify" else CauseClass.DEADLINE
            raise _Ended(self._cause(kind, f"not done within {limit:g} s", f"raise deadlines.{phase}")) from error
        finally:
            done = Phase(name=phase, started=started, seconds=time.monotonic() - begin)
            self._phases.append(done)
            self._report(done)

    def _report(self, done: Phase) -> None:
        event = Event(
            event_id=f"{self.spec.rollout_id}-{self.attempt.attempt}-{done.name}",
            rollout_id=self.spec.rollout_id,
            attempt=self.attempt.attempt,
            time=done.started + done.seconds,
            kind="phase",
            data={"name": done.name, "seconds": round(done.seconds, 6)},
        )
        self.parts.store.append_events([event]).add_done_callback(_tell_if_lost)

    def _cause(self, kind: CauseClass, message: str, next_step: str = "") -> Cause:
        return Cause(cause=kind, phase=self.phase, message=message[-MESSAGE_LIMIT:], next_step=next_step)

    def _hide(self, cause: Cause | None) -> Cause | None:
        if cause is None:
            return None
        return msgspec.structs.replace(cause, message=cause.message.replace(self.key, HIDDEN))


def _tell_if_lost(written: Future[None]) -> None:
    if (error := written.exception()) is not None:
        log.error("an event was not written: %s", error)


def _name(handle: SandboxHandle | None) -> str:
    return f"{handle.backend}:{handle.sandbox_id}" if handle else ""


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end, however often the caller is cancelled meanwhile; it has a limit of its own."""
    task = asyncio.create_task(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
