"""Is a task sound? The oracle must pass and doing nothing must fail, each in a fresh sandbox.

Invariants (tests/tasks/test_checks.py):
- a task whose oracle fails, that rewards doing nothing, or whose repository knows the future is reported with what was seen;
- a check never raises for what a task or a sandbox does; each sandbox is stopped, whatever happened in it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path

from whippletree.errors import SandboxError
from whippletree.protocols import ExecResult, Sandbox, SandboxSpec
from whippletree.tasks.history import history_leaks
from whippletree.tasks.task import Task
from whippletree.tasks.verifier import verify
from whippletree.types import Cause, CauseClass, Struct, VerifierResult

SOLUTION = "/solution"
_SOLVE = f"""root=${{PWD%/}}
chmod +x {SOLUTION[1:]}/solve.sh && cd "$root/$1" || exit 125
exec "$root{SOLUTION}/solve.sh\""""

MakeSandbox = Callable[[SandboxSpec], Sandbox]


class TaskCheck(Struct):
    """What the two runs showed. `problems` is empty for a sound task; `oracle` is None when the task has no solution.

    Example: TaskCheck(task_id="trail-train-d1-k1-00000", oracle=VerifierResult(reward=1.0), idle=VerifierResult(reward=0.0))
    """

    task_id: str
    idle: VerifierResult
    oracle: VerifierResult | None = None
    problems: tuple[str, ...] = ()


async def check_task(task: Task, make_sandbox: MakeSandbox, *, timeout: float = 600.0) -> TaskCheck:
    """Run the verifier after doing nothing, and after the oracle. `timeout`: seconds for each of the oracle and the tests."""
    name = f"check-{secrets.token_hex(4)}"  # task names may be longer than a sandbox's may be
    idle = await _run(task, make_sandbox(task.sandbox_spec(f"{name}-idle")), oracle=False, timeout=timeout)
    oracle = None
    if task.solution_dir:
        oracle = await _run(task, make_sandbox(task.sandbox_spec(f"{name}-oracle")), oracle=True, timeout=timeout)
    leaks = [leak for host, _ in task.files for leak in await asyncio.to_thread(history_leaks, Path(host))]
    return TaskCheck(task_id=task.task_id, idle=idle, oracle=oracle, problems=(*problems(idle, oracle), *leaks))


def problems(idle: VerifierResult, oracle: VerifierResult | None) -> list[str]:
    """What is wrong with a task, in sentences; nothing when it is sound."""
    found: list[str] = []
    if idle.reward is None:
        found.append(f"the verifier failed after doing nothing: {_why(idle)}")
    elif idle.reward > 0:
        found.append(f"doing nothing earns {idle.reward:g}, which should be 0")
    if oracle is None:
        found.append("there is no solution/solve.sh, so nothing shows that the task can be solved")
    elif oracle.reward is None:
        found.append(f"the oracle could not be judged: {_why(oracle)}")
    elif oracle.reward < 1:
        found.append(f"the oracle earns {oracle.reward:g}, which should be 1; the tests said: {oracle.output}")
    return found


def _why(result: VerifierResult) -> str:
    return result.cause.message if result.cause else "no cause was given"


async def _run(task: Task, sandbox: Sandbox, *, oracle: bool, timeout: float) -> VerifierResult:
    try:
        await sandbox.start()
        if oracle:
            solved = await _solve(task, sandbox, timeout)
            if solved.timed_out or solved.exit_code:
                return _failed(CauseClass.TASK, f"solution/solve.sh ended with {solved.exit_code}: {solved.output[-500:]}")
        return await verify(task, sandbox, timeout=timeout)
    except SandboxError as error:
        return _failed(CauseClass.SANDBOX, str(error))
    finally:
        await sandbox.stop()


async def _solve(task: Task, sandbox: Sandbox, timeout: float) -> ExecResult:
    await sandbox.put(Path(task.solution_dir), SOLUTION)
    result = await sandbox.exec(
        ["/bin/sh", "-c", _SOLVE, "oracle", task.workdir.lstrip("/")],
        timeout=timeout,
        environment=task.solution_environment,
        cwd="/",
    )
    await sandbox.kill_all()
    return result


def _failed(cause: CauseClass, message: str) -> VerifierResult:
    return VerifierResult(reward=None, cause=Cause(cause=cause, phase="check", message=message))
