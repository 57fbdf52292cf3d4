"""The verifier of a task: its own tests/test.sh, run after the agent, in the agent's sandbox, on files it has never seen.

    put tests ─► one command: check /tests, clear /logs/verifier, run test.sh ─► read reward.txt (or reward.json) once

Invariants (tests/tasks/test_verifier.py):
- `verify` never raises: what goes wrong is the result's cause, with reward None;
- a reward is a finite number that the tests wrote in this run; nothing the agent left behind counts, and what it left where
  only the tests write is named in the result;
- a wrong answer is a reward of 0, never None, and a broken test is None, never 0;
- `clear` leaves nothing of the tests for the next step's agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from whippletree.errors import SandboxError, words_of
from whippletree.protocols import ExecResult, Sandbox
from whippletree.tasks.defence import TEST_ENVIRONMENT
from whippletree.tasks.reward import RewardExpression
from whippletree.tasks.scores import (
    REWARD_LIMIT,
    ScoreError,
    rewarded,
    rewards_of_calls,
    scores_of_json,
    scores_of_text,
)
from whippletree.tasks.task import Step, Task
from whippletree.types import Cause, CauseClass, VerifierResult

TESTS = "/tests"
LOGS = "/logs/verifier"
REWARD_TEXT = "/logs/verifier/reward.txt"
REWARD_JSON = "/logs/verifier/reward.json"
REWARDS_OF_CALLS = "/logs/verifier/call_rewards.json"
OUTPUT_TAIL = 2_000  # characters
TRANSFER_LIMIT = 10.0  # seconds that copying in and reading out may take, together, beyond the tests' own limit

# Everything is relative to the sandbox's root, where the command starts: a backend without a root of its own keeps its paths in
# a private directory, and /tests and /logs would be the host's. Whatever the agent left in the way is made anew, so that
# it can neither add to the tests nor turn a 0 into a broken verifier. A copy adds files and replaces none: as many entries as
# were copied mean that nothing else is there. $1: entries in tests/, $2: working directory, $3: printed if there are more, $4:
# printed first if files are where the rewards will be.
# In the ordinary case the shell starts one program (mkdir) before the tests. Where the tests have a user of their own, all that
# comes before them is done as the sandbox's, and the place of the rewards is opened: nothing else runs there any more.
_PREPARE = f"""root=${{PWD%/}} count=0
walk() {{
  for entry in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    if [ -L "$entry" ]; then count=$((count + 1))
    elif [ -d "$entry" ]; then count=$((count + 1)); walk "$entry"
    elif [ -e "$entry" ]; then count=$((count + 1)); fi
  done
}}
walk {TESTS[1:]}
if [ "$count" != "$1" ]; then printf %s "$3"; exit 125; fi
if [ -L logs ] || [ ! -d logs ]; then rm -rf logs; elif [ ! -w logs ] || [ ! -x logs ]; then chmod 755 logs; fi
for planted in logs/verifier/* logs/verifier; do
  if [ -L "$planted" ] || [ -f "$planted" ]; then printf %s "$4"; break; fi
done
if [ -L logs/verifier ]; then rm -f logs/verifier
elif [ -e logs/verifier ]; then chmod -R u+rwX logs/verifier; rm -rf logs/verifier; fi
mkdir -p logs/verifier || exit 125
[ -x {TESTS[1:]}/test.sh ] || chmod +x {TESTS[1:]}/test.sh"""
_TEST = f"""cd "$root/$2" 2>/dev/null || cd "$root/"
exec "$root{TESTS}/test.sh\""""
_RUN = f"{_PREPARE}\n{_TEST}"
_OPEN = f"{_PREPARE}\nchmod 777 logs/verifier"
_RUN_AS = f"root=${{PWD%/}}\n{_TEST}"


async def verify(
    task: Task, sandbox: Sandbox, *, timeout: float, step: Step | None = None, rule: RewardExpression | None = None
) -> VerifierResult:
    """Judge what the agent left in `sandbox`, with the reward by `rule`. See `measure`."""
    measured = await measure(task, sandbox, step or task.steps[-1], timeout=timeout)
    return measured if measured.cause else rewarded(measured, rule)


async def measure(task: Task, sandbox: Sandbox, step: Step, *, timeout: float) -> VerifierResult:
    """The scores of one step, or the cause that there are none; the reward is left None. The agent's processes must have
    ended. Takes at most the smaller of `timeout` and the step's limit (seconds), and the time for copying. Never raises."""
    limit = min(timeout, step.judging.timeout)
    try:
        async with asyncio.timeout(limit + TRANSFER_LIMIT):
            result, tampering = await _run_tests(task, sandbox, step, limit)
            if result.timed_out:
                slow = f"tests/test.sh ran past {limit:g} s and was killed"
                return _with(tampering, _no_reward(result, slow, "raise verifier.timeout_sec"))
            return _with(tampering, await _read_scores(sandbox, result))
    except SandboxError as error:
        return _failed(CauseClass.SANDBOX, error.cause, error.next_step)
    except TimeoutError:
        return _failed(
            CauseClass.SANDBOX, f"the sandbox did not answer within {limit + TRANSFER_LIMIT:g} s", "look at the host"
        )
    except OSError as error:  # of this side: the task's directory
        where = ", ".join(step.judging.tests)
        return _failed(
            CauseClass.TASK, f"{error.filename or where} cannot be read: {words_of(error)}", "put the task's tests back"
        )


async def clear(sandbox: Sandbox) -> None:
    """Take the tests and what they wrote out of a sandbox that goes on to another step. Raises SandboxError."""
    await sandbox.kill_all()
    await sandbox.exec(["/bin/rm", "-rf", TESTS[1:], LOGS[1:]], timeout=TRANSFER_LIMIT, cwd="/")


@contextlib.contextmanager
def tests_of(step: Step) -> Iterator[Path]:
    """The step's tests in one directory: the task's own, with the step's laid over them. Raises OSError."""
    directories = step.judging.tests
    if len(directories) == 1:
        yield Path(directories[0])
        return
    with tempfile.TemporaryDirectory(prefix="whippletree-tests-") as merged:
        for directory in directories:
            shutil.copytree(directory, merged, symlinks=True, dirs_exist_ok=True)
        yield Path(merged)


def _with(tampering: tuple[str, ...], result: VerifierResult) -> VerifierResult:
    return msgspec.structs.replace(result, tampering=tampering)


async def _run_tests(task: Task, sandbox: Sandbox, step: Step, limit: float) -> tuple[ExecResult, tuple[str, ...]]:
    """Copy tests/ in and run test.sh; its end, and what the agent had left in its way.

    Where the agent made a /tests of its own, that is removed first.
    """
    place = step.judging.separate or task.place
    crowded, planted = secrets.token_hex(16), secrets.token_hex(16)
    with tests_of(step) as tests:
        entries = sum(1 for _ in tests.rglob("*"))
        argv = ["verifier", str(entries), place.workdir.lstrip("/"), crowded, planted]
        found: tuple[str, ...] = ()
        try:
            await sandbox.put(tests, TESTS)
        except SandboxError:  # a file of the agent's is in the way; if the sandbox itself is broken, the next line says so
            result = None
        else:
            result = await _exec(sandbox, argv, step, limit)
        if result is None or result.output == crowded:
            found = (f"{TESTS} was there already",)
            await sandbox.exec(["/bin/rm", "-rf", TESTS[1:]], timeout=TRANSFER_LIMIT, cwd="/")
            await sandbox.put(tests, TESTS)
            result = await _exec(sandbox, argv, step, limit)
    if result.output.startswith(planted):
        found = (*found, f"{LOGS} held files already")
        result = msgspec.structs.replace(result, output=result.output.removeprefix(planted))
    return result, found


async def _exec(sandbox: Sandbox, argv: list[str], step: Step, limit: float) -> ExecResult:
    judging = step.judging
    environment = TEST_ENVIRONMENT | sandbox.proxy_environment | judging.environment
    if not judging.user:
        return await sandbox.exec(["/bin/sh", "-c", _RUN, *argv], timeout=limit, environment=environment, cwd="/")
    opened = await sandbox.exec(["/bin/sh", "-c", _OPEN, *argv], timeout=limit, cwd="/")
    if opened.exit_code:
        return opened
    done = await sandbox.exec(
        ["/bin/sh", "-c", _RUN_AS, *argv],
        timeout=limit,
        environment=environment,
        cwd="/",
        user=judging.user,
    )
    return msgspec.structs.replace(done, output=opened.output + done.output)


async def _read_scores(sandbox: Sandbox, result: ExecResult) -> VerifierResult:
    try:
        text = await sandbox.read(REWARD_TEXT, REWARD_LIMIT + 1)
        named = None if text is not None else await sandbox.read(REWARD_JSON, REWARD_LIMIT + 1)
        if text is None and named is None:
            return _no_reward(result, f"the tests wrote neither {REWARD_TEXT} nor {REWARD_JSON}", "read the tests' output")
        scores = scores_of_text(text, REWARD_TEXT) if text is not None else scores_of_json(named or b"", REWARD_JSON)
        of_calls = await sandbox.read(REWARDS_OF_CALLS, REWARD_LIMIT + 1)
        calls = () if of_calls is None else rewards_of_calls(of_calls, REWARDS_OF_CALLS)
    except ScoreError as error:
        return _no_reward(result, str(error), "let the tests write finite numbers")
    output = result.output[-OUTPUT_TAIL:]
    return VerifierResult(reward=None, scores=scores, exit_code=result.exit_code, output=output, call_rewards=calls)


def _failed(cause: CauseClass, message: str, next_step: str) -> VerifierResult:
    return VerifierResult(reward=None, cause=Cause(cause=cause, phase="verify", message=message, next_step=next_step))


def _no_reward(result: ExecResult, message: str, next_step: str) -> VerifierResult:
    output = result.output[-OUTPUT_TAIL:]
    message = f"{message}; its output ends in: {output}" if output else message
    cause = Cause(cause=CauseClass.VERIFIER, phase="verify", message=message, next_step=next_step)
    return VerifierResult(reward=None, exit_code=result.exit_code, output=output, cause=cause)
