"""A task run without a model: set up, let something act as the agent, collect, judge; step by step, in a fresh sandbox.

What an attempt does with a harness and a gateway (whippletree.control.attempt), this does with any coroutine: for task authors
and for checks. The parts are the same.

Invariants (tests/tasks/test_trial.py):
- a trial never raises for what a task or a sandbox does: that is the result's cause;
- each sandbox is stopped, whatever happened in it; the steps after one that does not reach its least scores are not run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from whippletree.errors import SandboxError, TaskError
from whippletree.protocols import ExecResult, Sandbox, SandboxSpec
from whippletree.tasks.artifacts import collect
from whippletree.tasks.bench import Bench, MakeSandbox
from whippletree.tasks.preparing import await_health, prepare_step
from whippletree.tasks.reward import RewardExpression
from whippletree.tasks.scores import goes_on, step_result, total
from whippletree.tasks.task import Step, Task
from whippletree.tasks.verifier import clear
from whippletree.types import Cause, CauseClass, StepResult, VerifierResult

SOLUTION = "/solution"
_SOLVE = f"""root=${{PWD%/}}
cd "$root/$1" && exec "$root{SOLUTION}/solve.sh\""""

Acting = Callable[[Task, Step, Sandbox], Awaitable[None]]


class Reaching(Protocol):
    """What the phases of a task may reach."""

    def around(self, spec: SandboxSpec) -> SandboxSpec:
        """The sandbox of the agent, with the network of its set-up."""
        ...

    def apart(self, spec: SandboxSpec, step: Step) -> SandboxSpec:
        """A separate verifier's sandbox, with the network of its tests."""
        ...

    async def enter(self, sandbox: Sandbox, phase: Literal["setup", "agent", "collect", "verify"], step: Step) -> None:
        """From here on the sandbox reaches what this phase of the step may."""
        ...


async def run_trial(
    task: Task,
    make_sandbox: MakeSandbox,
    acting: Acting,
    *,
    name: str,
    timeout: float,
    rule: RewardExpression | None = None,
    directory: Path | None = None,
    reach: Reaching | None = None,
) -> VerifierResult:
    """Run every step with `acting` as the agent. `name`: of the sandbox; `timeout`: seconds for each set-up and each run of the
    tests; `directory`: where artifacts are kept (None for nowhere); `reach`: what phases may reach (None for nothing). Never
    raises for the task's or the sandbox's fault."""
    with tempfile.TemporaryDirectory(prefix="whippletree-artifacts-") as scratch:
        where = directory or Path(scratch)
        trial = _Trial(task, make_sandbox, acting, name=name, timeout=timeout, directory=where, reach=reach)
        return await trial.run(rule)


class _Trial:
    def __init__(
        self,
        task: Task,
        make_sandbox: MakeSandbox,
        acting: Acting,
        *,
        name: str,
        timeout: float,
        directory: Path,
        reach: Reaching | None,
    ) -> None:
        self._task = task
        self._make = make_sandbox
        self._acting = acting
        self._name = name
        self._timeout = timeout
        self._directory = directory
        self._reach = reach
        self._phase = "boot"

    async def run(self, rule: RewardExpression | None) -> VerifierResult:
        judged: list[VerifierResult] = []
        steps: list[StepResult] = []
        try:
            spec = self._task.sandbox_spec(self._name)
            sandbox = self._make(self._reach.around(spec) if self._reach else spec)
            try:
                await self._run(sandbox, judged, steps)
            finally:
                await sandbox.stop()
        except (SandboxError, TaskError) as error:
            kind = CauseClass.SANDBOX if isinstance(error, SandboxError) else CauseClass.TASK
            cause = Cause(cause=kind, phase=self._phase, message=error.cause, next_step=error.next_step)
            return VerifierResult(reward=None, cause=cause, steps=tuple(steps))
        result = total(self._task, judged, rule)
        several = len(self._task.steps) > 1
        return msgspec.structs.replace(result, steps=tuple(steps)) if several else result

    async def _run(self, sandbox: Sandbox, judged: list[VerifierResult], steps: list[StepResult]) -> None:
        await sandbox.start()
        if self._task.place.healthcheck is not None:
            self._phase = "healthcheck"
            await await_health(self._task.place.healthcheck, sandbox)
        for number, step in enumerate(self._task.steps):
            found = await self._step(step, sandbox, number)
            judged.append(found)
            steps.append(step_result(step, found))
            if found.cause is not None or step is self._task.steps[-1] or not goes_on(step, found):
                return
            await clear(sandbox)

    async def _step(self, step: Step, sandbox: Sandbox, number: int) -> VerifierResult:
        reach = self._reach
        apart = (lambda spec: self._make(reach.apart(spec, step))) if reach else self._make
        bench = Bench(self._task, step, apart, f"{self._name}-v{number}")
        directory = self._directory / "steps" / step.name if step.name else self._directory
        try:
            self._phase = "setup"
            await self._enter(sandbox, "setup", step)
            await prepare_step(self._task, step, sandbox, timeout=self._timeout)
            if step.healthcheck is not None:
                self._phase = "healthcheck"
                await await_health(step.healthcheck, sandbox)
            self._phase = "agent"
            await self._enter(sandbox, "agent", step)
            bench.begin()
            await self._acting(self._task, step, sandbox)
            self._phase = "collect"
            await self._enter(sandbox, "collect", step)
            await sandbox.kill_all()
            manifest = await collect(self._task, step, sandbox, directory)
            self._phase = "verify"
            await self._enter(sandbox, "verify", step)
            return await bench.judge(sandbox, manifest, directory, timeout=self._timeout)
        finally:
            await bench.close()

    async def _enter(self, sandbox: Sandbox, phase: Literal["setup", "agent", "collect", "verify"], step: Step) -> None:
        if self._reach is not None:
            await self._reach.enter(sandbox, phase, step)


async def do_nothing(task: Task, step: Step, sandbox: Sandbox) -> None:
    """No agent at all."""


async def no_op(task: Task, step: Step, sandbox: Sandbox) -> None:
    """An agent that starts and ends at once. Raises SandboxError."""
    await sandbox.exec(["/bin/sh", "-c", ":"], timeout=step.agent_timeout, user=step.agent_user)


async def oracle(task: Task, step: Step, sandbox: Sandbox) -> None:
    """The step's solution/solve.sh. Raises TaskError when there is none or when it fails, SandboxError."""
    if not step.solution_dir:
        where = f"steps/{step.name}/solution" if step.name else "solution"
        raise TaskError(f"{task.path}: there is no {where}/solve.sh", "write one, so that the task can be checked")
    await sandbox.put(Path(step.solution_dir), SOLUTION)
    await sandbox.exec(["/bin/chmod", "+x", f"{SOLUTION[1:]}/solve.sh"], timeout=30.0, cwd="/")
    done = await sandbox.exec(
        ["/bin/sh", "-c", _SOLVE, "oracle", task.workdir.lstrip("/")],
        timeout=step.agent_timeout,
        environment=sandbox.proxy_environment | task.solution_environment,
        cwd="/",
        user=step.agent_user,
    )
    await sandbox.kill_all()
    await sandbox.exec(["/bin/rm", "-rf", SOLUTION[1:]], timeout=30.0, cwd="/")
    if done.timed_out or done.exit_code:
        raise TaskError(
            f"{Path(step.solution_dir).name}/solve.sh {ended(done)}", "run it by hand: `whippletree tasks run --shell`"
        )


def ended(done: ExecResult) -> str:
    """How a command ended, with the end of its output."""
    how = "ran past its limit" if done.timed_out else f"ended with {done.exit_code}"
    return f"{how}: {done.output[-500:].strip()}"
