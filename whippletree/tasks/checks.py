"""Is a task sound? The oracle passes, an agent that does nothing fails, the untouched environment fails; each run twice, in
fresh sandboxes, so that a verdict that changes shows.

Invariants (tests/tasks/test_checks.py):
- a task whose oracle fails, that rewards doing nothing, that judges one state in two ways, or whose repository knows the
  future is reported with what was seen;
- a check never raises for what a task or a sandbox does; each sandbox is stopped, whatever happened in it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from whippletree.tasks.bench import MakeSandbox
from whippletree.tasks.history import history_leaks
from whippletree.tasks.reward import RewardExpression
from whippletree.tasks.task import Task
from whippletree.tasks.trial import Acting, Reaching, do_nothing, no_op, oracle, run_trial
from whippletree.types import Struct, VerifierResult

TIMES = 2  # runs of each kind


class TaskCheck(Struct):
    """What the runs showed. `problems` is empty for a sound task; `oracle` is empty when the task has no solution.

    Example: TaskCheck(task_id="trail-train-d1-k1-00000", untouched=(VerifierResult(reward=0.0), VerifierResult(reward=0.0)))
    """

    task_id: str
    untouched: tuple[VerifierResult, ...]
    no_op: tuple[VerifierResult, ...] = ()
    oracle: tuple[VerifierResult, ...] = ()
    problems: tuple[str, ...] = ()


async def check_task(
    task: Task,
    make_sandbox: MakeSandbox,
    *,
    timeout: float = 600.0,
    rule: RewardExpression | None = None,
    times: int = TIMES,
    reach: Reaching | None = None,
) -> TaskCheck:
    """Run the verifier `times` times on the untouched environment, after a no-op agent, and after the oracle. `timeout`:
    seconds for each set-up and each run of the tests; `reach`: what phases may reach (None for nothing)."""
    name = f"check-{secrets.token_hex(4)}"  # task names may be longer than a sandbox's may be

    async def once(kind: str, time: int, acting: Acting) -> VerifierResult:
        called = f"{name}-{kind}-{time}"
        return await run_trial(task, make_sandbox, acting, name=called, timeout=timeout, rule=rule, reach=reach)

    async def several(kind: str, acting: Acting) -> tuple[VerifierResult, ...]:
        return tuple([await once(kind, time, acting) for time in range(times)])

    untouched = await several("untouched", do_nothing)
    nothing = await several("no-op", no_op)
    solved = await several("oracle", oracle) if any(step.solution_dir for step in task.steps) else ()
    leaks = [leak for host, _ in task.place.files for leak in await asyncio.to_thread(history_leaks, Path(host))]
    found = [*problems(untouched, nothing, solved), *leaks]
    return TaskCheck(task_id=task.task_id, untouched=untouched, no_op=nothing, oracle=solved, problems=tuple(found))


def problems(
    untouched: Sequence[VerifierResult], nothing: Sequence[VerifierResult], solved: Sequence[VerifierResult]
) -> list[str]:
    """What is wrong with a task, in sentences; nothing when it is sound."""
    found = [*_should_fail("the untouched environment", untouched), *_should_fail("doing nothing", nothing)]
    found += _flaky("the untouched environment", untouched)
    found += _flaky("doing nothing", nothing)
    if not solved:
        return [*found, "there is no solution/solve.sh, so nothing shows that the task can be solved"]
    return [*found, *_should_pass(solved), *_flaky("the oracle", solved)]


def _should_fail(what: str, results: Sequence[VerifierResult]) -> Iterator[str]:
    for result in _different(results):
        if result.reward is None:
            yield f"the verifier failed on {what}: {_why(result)}"
        elif result.reward > 0:
            yield f"{what} earns {result.reward:g}, which should be 0"


def _should_pass(results: Sequence[VerifierResult]) -> Iterator[str]:
    for result in _different(results):
        if result.reward is None:
            yield f"the oracle could not be judged: {_why(result)}"
        elif result.reward < 1:
            yield f"the oracle earns {result.reward:g}, which should be 1; the tests said: {result.output}"


def _flaky(what: str, results: Sequence[VerifierResult]) -> Iterator[str]:
    verdicts = ["no reward" if result.reward is None else f"{result.reward:g}" for result in results]
    if len(set(verdicts)) > 1:
        yield f"flaky: {what} was judged {len(verdicts)} times and got {', '.join(verdicts)}"


def _different(results: Sequence[VerifierResult]) -> Sequence[VerifierResult]:
    """One result of each reward."""
    return list({result.reward: result for result in results}.values())


def _why(result: VerifierResult) -> str:
    return result.cause.message if result.cause else "no cause was given"
