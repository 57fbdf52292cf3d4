"""The verifier of a task: its own tests/test.sh, run after the agent, in the agent's sandbox, on files it has never seen.

    put tests ─► one command: check /tests, clear /logs/verifier, run test.sh ─► read reward.txt (or reward.json) once

Invariants (tests/tasks/test_verifier.py):
- `verify` never raises: what goes wrong is the result's cause, with reward None;
- a reward is a finite number that the tests wrote in this run; nothing the agent left behind counts, and what it left where
  only the tests write is named in the result;
- a wrong answer is a reward of 0, never None, and a broken test is None, never 0.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from pathlib import Path

import msgspec

from whippletree.errors import SandboxError
from whippletree.protocols import ExecResult, Sandbox
from whippletree.tasks.task import Task
from whippletree.types import Cause, CauseClass, VerifierResult

TESTS = "/tests"
REWARD_TEXT = "/logs/verifier/reward.txt"
REWARD_JSON = "/logs/verifier/reward.json"
REWARD_LIMIT = 65_536  # bytes
OUTPUT_TAIL = 2_000  # characters
TRANSFER_LIMIT = 10.0  # seconds that copying in and reading out may take, together, beyond the tests' own limit

# Everything is relative to the sandbox's root, where the command starts: a backend without a root of its own keeps its paths in
# a private directory, and /tests and /logs would be the host's. Whatever the agent left in the way is made anew, so that
# it can neither add to the tests nor turn a 0 into a broken verifier. A copy adds files and replaces none: as many entries as
# were copied mean that nothing else is there. $1: entries in tests/, $2: working directory, $3: printed if there are more, $4:
# printed first if files are where the rewards will be.
# In the ordinary case the shell starts one program (mkdir) before the tests.
_RUN = f"""root=${{PWD%/}} count=0
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
[ -x {TESTS[1:]}/test.sh ] || chmod +x {TESTS[1:]}/test.sh
cd "$root/$2" 2>/dev/null || cd "$root/"
exec "$root{TESTS}/test.sh\""""


async def verify(task: Task, sandbox: Sandbox, *, timeout: float) -> VerifierResult:
    """Judge what the agent left in `sandbox`; takes at most the smaller of `timeout` and the task's own limit (seconds),
    plus the time for copying. The agent's processes must have ended. Never raises."""
    limit = min(timeout, task.verifier_timeout)
    try:
        async with asyncio.timeout(limit + TRANSFER_LIMIT):
            result, tampering = await _run_tests(task, sandbox, limit)
            if result.timed_out:
                slow = f"tests/test.sh ran past {limit:g} s and was killed"
                return _with(tampering, _no_reward(result, slow, "raise verifier.timeout_sec"))
            return _with(tampering, await _read_reward(sandbox, result))
    except SandboxError as error:
        return _failed(CauseClass.SANDBOX, error.cause, error.next_step)
    except TimeoutError:
        return _failed(
            CauseClass.SANDBOX, f"the sandbox did not answer within {limit + TRANSFER_LIMIT:g} s", "look at the host"
        )
    except OSError as error:  # of this side: the task's directory
        return _failed(CauseClass.TASK, f"{task.tests_dir} cannot be read: {error}", "put the task's tests back")


def _with(tampering: tuple[str, ...], result: VerifierResult) -> VerifierResult:
    return msgspec.structs.replace(result, tampering=tampering)


async def _run_tests(task: Task, sandbox: Sandbox, limit: float) -> tuple[ExecResult, tuple[str, ...]]:
    """Copy tests/ in and run test.sh; its end, and what the agent had left in its way.

    Where the agent made a /tests of its own, that is removed first.
    """
    tests = Path(task.tests_dir)
    entries, crowded, planted = sum(1 for _ in tests.rglob("*")), secrets.token_hex(16), secrets.token_hex(16)
    argv = ["/bin/sh", "-c", _RUN, "verifier", str(entries), task.workdir.lstrip("/"), crowded, planted]
    found: tuple[str, ...] = ()
    try:
        await sandbox.put(tests, TESTS)
    except SandboxError:  # a file of the agent's is in the way; if the sandbox itself is broken, the next line says so
        result = None
    else:
        result = await sandbox.exec(argv, timeout=limit, environment=task.verifier_environment, cwd="/")
    if result is None or result.output == crowded:
        found = (f"{TESTS} was there already",)
        await sandbox.exec(["/bin/rm", "-rf", TESTS[1:]], timeout=TRANSFER_LIMIT, cwd="/")
        await sandbox.put(tests, TESTS)
        result = await sandbox.exec(argv, timeout=limit, environment=task.verifier_environment, cwd="/")
    if result.output.startswith(planted):
        found = (*found, f"{Path(REWARD_TEXT).parent} held files already")
        result = msgspec.structs.replace(result, output=result.output.removeprefix(planted))
    return result, found


async def _read_reward(sandbox: Sandbox, result: ExecResult) -> VerifierResult:
    text = await sandbox.read(REWARD_TEXT, REWARD_LIMIT)
    if text is not None:
        return _from_text(text, result)
    scores = await sandbox.read(REWARD_JSON, REWARD_LIMIT)
    if scores is not None:
        return _from_json(scores, result)
    return _no_reward(result, f"the tests wrote neither {REWARD_TEXT} nor {REWARD_JSON}", "read the tests' output")


def _from_text(data: bytes, result: ExecResult) -> VerifierResult:
    try:
        value = float(data.decode("ascii").strip())
    except ValueError:
        return _no_reward(result, f"{REWARD_TEXT} holds {data[:80]!r}, which is no number", "let the tests write one number")
    return _rewarded({"reward": value}, value, result, REWARD_TEXT)


def _from_json(data: bytes, result: ExecResult) -> VerifierResult:
    try:
        scores = json.loads(data)
    except ValueError:
        scores = None
    numbers = isinstance(scores, dict) and all(type(value) in (int, float) for value in scores.values())
    if not numbers or not scores:
        return _no_reward(result, f"{REWARD_JSON} holds {data[:80]!r}", 'let the tests write {"name": number, ...}')
    named = {name: float(value) for name, value in scores.items()}
    if "reward" not in named and len(named) > 1:
        return _no_reward(result, f"{REWARD_JSON} has the scores {', '.join(named)}", 'name the one that counts "reward"')
    return _rewarded(named, named.get("reward", next(iter(named.values()))), result, REWARD_JSON)


def _rewarded(scores: dict[str, float], reward: float, result: ExecResult, source: str) -> VerifierResult:
    odd = [f"{name} = {value}" for name, value in scores.items() if not math.isfinite(value)]
    if odd:
        return _no_reward(result, f"{source}: {', '.join(odd)}", "let the tests write finite numbers")
    return VerifierResult(reward=reward, scores=scores, exit_code=result.exit_code, output=result.output[-OUTPUT_TAIL:])


def _failed(cause: CauseClass, message: str, next_step: str) -> VerifierResult:
    return VerifierResult(reward=None, cause=Cause(cause=cause, phase="verify", message=message, next_step=next_step))


def _no_reward(result: ExecResult, message: str, next_step: str) -> VerifierResult:
    output = result.output[-OUTPUT_TAIL:]
    message = f"{message}; its output ends in: {output}" if output else message
    cause = Cause(cause=CauseClass.VERIFIER, phase="verify", message=message, next_step=next_step)
    return VerifierResult(reward=None, exit_code=result.exit_code, output=output, cause=cause)
