"""One attempt at a rollout, from a cold sandbox to an outcome.

    image ─► boot ─► healthcheck ─► setup ─► agent ─► seal ─► collect ─► verify ─► cleanup
    where    task,   of the         files    the      no      hooks,     tests     sandboxes
    it has   sandbox task           │        harness  more    artifacts  │         gone
    one                             └──── once per step of the task ─────┘
                                    (seal: after the last one that is run)

Every phase has its own limit, all of them together have one, and each is recorded with its seconds. A harness that ran out of
time or budget did its job: what follows is a setting. Everything else that goes wrong is a cause with the reward left None; the
failure table (policy) says what follows from it.

Invariants (tests/control/test_attempt.py, test_attempt_steps.py):
- `run` returns exactly one outcome, with a reward or a cause, and raises nothing, also when it is cancelled in any phase;
- no call is accepted once `seal` has begun, and nothing of the agent runs while a verifier judges;
- when `run` returns the sandboxes are gone, or their cleanup ran past its own limit and the record says so;
- an agent that was stopped at a limit is told from one that ended, and runs no further step;
- the attempt's key is in no record.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from whippletree import sandboxes
from whippletree.control.config import ControlConfig, reward_rule
from whippletree.control.defending import Defence, note
from whippletree.control.imaging import HeldImages, Imaging
from whippletree.control.keeping import Keeping, Shelf
from whippletree.control.launch import HIDDEN, KILL_SECONDS, Launcher, Launchers
from whippletree.control.measuring import measured
from whippletree.control.phases import CLEANUP, Ended, Phases
from whippletree.control.place import attempt_directory, slug
from whippletree.control.policy import AgentEnd, Row, SealReport, blame, cut_short, judge, row_of
from whippletree.control.reaching import AttemptNetwork
from whippletree.errors import ConfigurationError, SandboxError, WhippletreeError
from whippletree.gateway.keys import mint
from whippletree.gateway.ownership import owner
from whippletree.protocols import AttemptSpec, Sandbox, SandboxHandle, SandboxSpec, Store
from whippletree.sandboxes.config import SandboxConfig
from whippletree.tasks import Step, Task
from whippletree.tasks.artifacts import Manifest, collect
from whippletree.tasks.bench import Bench
from whippletree.tasks.preparing import await_health, prepare_step
from whippletree.tasks.scores import goes_on, step_result, total
from whippletree.tasks.verifier import clear
from whippletree.types import Attempt, Cause, CauseClass, Event, Phase, RolloutSpec, StepResult, Usage, VerifierResult

log = logging.getLogger(__name__)

INTERRUPTIBLE = ("", "image", "boot", "healthcheck", "setup", "agent")  # later phases are short, and their tokens are paid for
STEP_PHASES = ("setup", "healthcheck", "agent", "collect", "verify")
INNER_PORT = 8000  # where the gateway is reached on 127.0.0.1 inside an isolated sandbox
VERIFY_SLACK = 15.0  # seconds beyond the verifier's own limit, for copying tests in and the reward out


class Sealer(Protocol):
    """Closes attempts at the gateway."""

    async def seal(self, rollout_id: str, attempt: int, limit: float, *, crashed: bool) -> SealReport:
        """No further call is accepted once this returns, `limit` seconds later at most. `crashed`: find out who is to blame."""
        ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What all attempts of a controller share. `gateway` is (host, port), `gateway_ports` the own
    ports of its workers, where there are several; `prefix` begins the names of its sandboxes; `shelf` has its snapshots."""

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
    imaging: Imaging
    shelf: Shelf

    def place(self, rollout_id: str, attempt: int) -> Path:
        """The directory of an attempt's files."""
        return attempt_directory(self.directory, rollout_id, attempt)


class AttemptRun:
    """One attempt under way."""

    def __init__(self, parts: Parts, spec: RolloutSpec, attempt: Attempt) -> None:
        self.parts = parts
        self.spec = spec
        self.attempt = attempt
        self.key = mint(parts.secret, spec.rollout_id, attempt.attempt)
        self._phases = Phases(parts.config.deadlines.total, self._report)
        self._name = f"{parts.prefix}{slug(spec.rollout_id)}-{attempt.attempt}"
        self._directory = parts.place(spec.rollout_id, attempt.attempt)
        self._defence = Defence(parts.config.defence, parts.store, attempt, parts.directory / "hidden")
        self._network = AttemptNetwork(parts.config.network, parts.store, attempt, self._defence)
        self._images = HeldImages(parts.imaging)
        self._keeping = Keeping(parts.config, parts.shelf, parts.store, attempt, self._directory, key=self.key, hidden=HIDDEN)
        self._sandbox: Sandbox | None = None
        self._usage: Usage | None = None
        self._benches: list[Bench] = []
        self._steps: list[StepResult] = []
        self._exit_status = ""
        self._cut_short: Cause | None = None
        self._sealed = False
        self._step = ""

    @property
    def phase(self) -> str:
        """The phase that it is in."""
        return self._phases.name

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
        except Ended as end:
            cause = end.cause
        except WhippletreeError as error:
            cause = self._cause(blame(error, self.phase), error.cause, error.next_step)
        except Exception as error:
            log.exception("%s attempt %d: unexpected error in phase %s", self.spec.rollout_id, self.attempt.attempt, self.phase)
            cause = self._cause(blame(error, self.phase), f"unexpected {error!r}", "the controller's log has the traceback")
        if result is not None and result.reward is None and cause is None and not result.pending:
            cause = self._cause(CauseClass.VERIFIER, "the verifier gave neither a reward nor a cause", "mend the verifier")
        if cause is not None and cause.cause is not CauseClass.CANCELLED:
            with contextlib.suppress(asyncio.CancelledError):  # it has failed already, and is cleaned up now
                await self._keeping.take(self._sandbox, self._phases)
        await to_the_end(self._clean_up(cause))
        self._images.close()
        if result is None and self._steps:
            result = VerifierResult(reward=None, cause=self._hide(cause), steps=tuple(self._steps))
        return msgspec.structs.replace(
            self.attempt,
            finished=time.time(),
            phases=tuple(self._phases.done),
            result=result,
            cause=self._hide(cause),
            exit_status=self._exit_status,
            sealed=True,
            sandbox=_name(self._sandbox.handle) if self._sandbox else "",
            cut_short=self._hide(self._cut_short),
            usage=self._usage,
            snapshot=self._keeping.kept,
        )

    async def _work(self) -> VerifierResult:
        limits = self.parts.config.deadlines
        async with self._phases.enter("boot", limits.boot, begins=True):
            launcher, binding = self.parts.launchers.find(self.spec)
            task = await self.parts.imaging.read(Path(self.spec.task_path))
            _check_users(task, launcher)
        if task.images:
            async with self._phases.enter("image", limits.image):
                task = await self._images.on(task)
        async with self.parts.starting:
            self._phases.begin()
            async with self._phases.enter("boot", limits.boot):
                handle = await self._boot(task, launcher)
        if task.place.healthcheck is not None:
            async with self._phases.enter("healthcheck", limits.healthcheck):
                await await_health(task.place.healthcheck, self._box)
        judged: list[VerifierResult] = []
        for step in task.steps:
            end, bench = await self._act(task, step, handle, launcher, binding.settings)
            if step is task.steps[-1] or _stops(end):
                await self._seal(end)
            found = await self._judge(task, step, bench)
            judged.append(found)
            self._steps.append(step_result(step, found, exit_status=self._exit_status, cut_short=self._cut_short))
            if found.cause is not None or self._sealed:
                break
            if not goes_on(step, found):
                await self._seal(end)
                break
        later = self.parts.config.rubrics_of(self.spec.source)
        result = total(task, judged, reward_rule(binding.reward, self.parts.config.reward), later)
        if (short := self._cut_short) and not self._row(short).reward_valid:
            self._cut_short = None
            result = msgspec.structs.replace(result, reward=None, cause=short, pending=())
        return msgspec.structs.replace(result, steps=tuple(self._steps)) if len(task.steps) > 1 else result

    def _row(self, cause: Cause) -> Row:
        return row_of(cause.cause, self.parts.config.on_limit(cause.cause))

    async def _boot(self, task: Task, launcher: Launcher) -> SandboxHandle:
        port = INNER_PORT if launcher.inside else 0
        spec = msgspec.structs.replace(task.sandbox_spec(self._name, gateway_port=port), read_only=launcher.read_only)
        self._sandbox = self._make(await asyncio.to_thread(self._defence.conceal, self._network.around(spec, task)))
        handle = await self._sandbox.start()
        await self._defence.cover(self._sandbox)
        return handle

    def _make(self, spec: SandboxSpec) -> Sandbox:
        return sandboxes.create(self.parts.sandbox, spec, gateway=self._gateway)

    @property
    def _gateway(self) -> tuple[str, int]:
        """The gateway worker that owns this rollout, so that nothing has to be forwarded."""
        host, port = self.parts.gateway
        ports = self.parts.gateway_ports
        return host, ports[owner(self.spec.rollout_id, len(ports))] if ports else port

    @property
    def _box(self) -> Sandbox:
        if self._sandbox is None:
            raise SandboxError("the attempt has no sandbox yet")
        return self._sandbox

    def _attempt_spec(
        self, step: Step, handle: SandboxHandle, *, inside: bool, timeout: float, settings: dict[str, object]
    ) -> AttemptSpec:
        host, port = self._box.gateway if inside else self._gateway
        directory = self._directory / "steps" / step.name if step.name else self._directory
        directory.mkdir(parents=True, exist_ok=True)
        return AttemptSpec(
            rollout_id=self.spec.rollout_id,
            attempt=self.attempt.attempt,
            instruction=step.instruction,
            base_url=f"http://{f'[{host}]' if ':' in host else host}:{port}/v1",
            api_key=self.key,
            model=self.parts.model,
            workdir=handle.workdir,
            output_dir=str(directory),
            timeout=timeout,
            settings=settings,
            sandbox=handle,
            step=step.name,
            user=step.agent_user,
        )

    async def _act(
        self, task: Task, step: Step, handle: SandboxHandle, launcher: Launcher, settings: dict[str, object]
    ) -> tuple[AgentEnd, Bench]:
        """Set a step up and run the harness in it, while the verifier's own sandbox, if it has one, boots."""
        limits = self.parts.config.deadlines
        timeout = min(limits.agent, step.agent_timeout)
        spec = self._attempt_spec(step, handle, inside=launcher.inside, timeout=timeout, settings=settings)
        self._step = step.name
        async with self._phases.enter("setup", limits.setup, step.name):
            if self._steps:
                await clear(self._box)
                await self._network.enter(self._box, "setup", step)
            await prepare_step(task, step, self._box, timeout=limits.setup)
            agent = await launcher.setup(spec, self._box)
            await self._defence.before(self._box, task.workdir)
        if step.healthcheck is not None:
            async with self._phases.enter("healthcheck", limits.healthcheck, step.name):
                await await_health(step.healthcheck, self._box)
        bench = Bench(task, step, self._network.apart(self._make, step), f"{self._name}-v{len(self._benches)}")
        self._benches.append(bench)
        async with self._phases.enter("agent", timeout + launcher.slack, step.name):
            bench.begin()
            await self._network.enter(self._box, "agent", step)
            end = await agent.run(timeout)
            self._exit_status = end.result.exit_status
            self._cut_short = cut_short(end, timeout)
        return end, bench

    async def _seal(self, end: AgentEnd) -> None:
        """Close the attempt at the gateway, end what the agent left running, and decide whether it can be verified."""
        limit = self.parts.config.deadlines.seal
        async with self._phases.enter("seal", limit + 2 * KILL_SECONDS):
            await self._network.enter(self._box, "seal")
            report = await self.parts.sealer.seal(self.spec.rollout_id, self.attempt.attempt, limit, crashed=end.result.crashed)
            self._sealed = True
            calls = await asyncio.to_thread(self.parts.store.calls, self.spec.rollout_id, self.attempt.attempt)
            await asyncio.to_thread(self._defence.tried)
            if cause := judge(end, report, calls):
                self._cut_short = None
                raise Ended(cause)
            if (short := self._cut_short) and not self._row(short).graded:
                self._cut_short = None
                raise Ended(short)
            await self._kill_all()
            self._usage = await measured(self._box)
        await self._keeping.take(self._sandbox, self._phases)

    async def _kill_all(self) -> None:
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await self._box.kill_all()
        except TimeoutError as error:
            raise SandboxError(f"its processes did not end within {KILL_SECONDS:g} s") from error
        await self._network.enter(self._box, "collect")

    async def _judge(self, task: Task, step: Step, bench: Bench) -> VerifierResult:
        """The step's scores, or the cause that there are none. Nothing of the agent runs any more."""
        limits = self.parts.config.deadlines
        directory = self._directory / "artifacts" / step.name
        manifest = Manifest(step=step.name)
        if not self._sealed or step.artifacts or step.judging.collect:
            async with self._phases.enter("collect", limits.collect, step.name):
                await self._kill_all()
                manifest = await collect(task, step, self._box, directory)
        limit = min(limits.verify, step.judging.timeout)
        async with self._phases.enter("verify", limit * (1 + bench.separate) + VERIFY_SLACK, step.name):
            await self._defence.after(self._box, task.workdir, last=self._sealed)
            if not bench.separate:
                await self._network.enter(self._box, "verify", step)
            found = await bench.judge(self._box, manifest, directory, timeout=limit)
            self._defence.left(found.tampering)
            return found

    async def _clean_up(self, cause: Cause | None) -> None:
        if self._sandbox is None:
            return
        limit = self.parts.config.deadlines.cleanup
        try:
            async with self._phases.enter(CLEANUP, limit):
                self._network.end(self._sandbox)
                self._usage = self._usage or await measured(self._sandbox)
                await asyncio.gather(self._sandbox.stop(), *(bench.close() for bench in self._benches))
        except Ended:
            log.error("%s: its sandbox did not end within %g s; `clean` removes it", self.attempt.rollout_id, limit)
        await self._keeping.settle(cause)

    def _report(self, done: Phase) -> None:
        place = f"{done.name}-{done.step}" if done.step else done.name
        data: dict[str, Any] = {"name": done.name, "seconds": round(done.seconds, 6)}
        event = Event(
            event_id=f"{self.spec.rollout_id}-{self.attempt.attempt}-{place}",
            rollout_id=self.spec.rollout_id,
            attempt=self.attempt.attempt,
            time=done.started + done.seconds,
            kind="phase",
            data=data | ({"step": done.step} if done.step else {}) | ({"overran": True} if done.overran else {}),
        )
        note(self.parts.store, [event])

    def _cause(self, kind: CauseClass, message: str, next_step: str = "") -> Cause:
        return self._phases.cause(kind, message, next_step)

    def _hide(self, cause: Cause | None) -> Cause | None:
        if cause is None:
            return None
        step = self._step if cause.phase in STEP_PHASES else ""
        return msgspec.structs.replace(cause, message=cause.message.replace(self.key, HIDDEN), step=step)


def _stops(end: AgentEnd) -> bool:
    """Whether no further step follows: the harness failed, or was stopped at a limit."""
    return end.cause is not None or end.result.crashed or cut_short(end, 0.0) is not None


def _check_users(task: Task, launcher: Launcher) -> None:
    """Raises ConfigurationError where a task names a user for a harness that does not run inside the sandbox."""
    users = sorted({step.agent_user for step in task.steps if step.agent_user})
    if users and not launcher.inside:
        raise ConfigurationError(
            f"{task.path}: agent.user = {users[0]}, and the harness runs in a pool host", 'set control.launch = "process"'
        )


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
