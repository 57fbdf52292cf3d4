"""The verifier, in real sandboxes: what counts as a reward and what as a failure."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator

import pytest

from whippletree.errors import SandboxError
from whippletree.protocols import Sandbox
from whippletree.sandboxes import SandboxConfig, create
from whippletree.tasks import Task, verify
from whippletree.types import CallReward, CauseClass

HEAD = "#!/bin/sh\nroot=${0%/tests/test.sh}\nout=$root/logs/verifier\n"


@contextlib.asynccontextmanager
async def running(make_sandbox, task: Task) -> AsyncIterator[Sandbox]:
    sandbox = make_sandbox(task.sandbox_spec("verify-1"))
    await sandbox.start()
    try:
        yield sandbox
    finally:
        await sandbox.stop()


async def judged(make_sandbox, task: Task, agent: str = ""):
    """Let an "agent" run a shell script in the working directory, then judge."""
    async with running(make_sandbox, task) as sandbox:
        if agent:
            await sandbox.exec(["/bin/sh", "-c", agent], timeout=10.0)
            await sandbox.kill_all()
        return await verify(task, sandbox, timeout=20.0)


CHECK_ANSWER = (
    HEAD + 'if [ "$(cat answer.txt 2>/dev/null)" = yes ]; then echo 1; else echo 0; fi > "$out/reward.txt"; echo checked\n'
)


async def test_right_and_wrong_answers_are_rewards(make_sandbox, make_task):
    task = make_task(CHECK_ANSWER)
    right = await judged(make_sandbox, task, "echo yes > answer.txt")
    assert (right.reward, right.scores, right.exit_code, right.cause) == (1.0, {"reward": 1.0}, 0, None)
    assert "checked" in right.output
    wrong = await judged(make_sandbox, task, "echo no > answer.txt")
    assert (wrong.reward, wrong.cause) == (0.0, None)
    nothing = await judged(make_sandbox, task)
    assert (nothing.reward, nothing.cause) == (0.0, None)


async def test_the_tests_run_in_the_working_directory_with_their_files_and_variables(make_sandbox, make_task):
    script = (
        HEAD + '[ -f given ] && [ -f "$root/tests/helper" ] && [ "$LEVEL$COLOUR" = 3red ] && echo 0.5 > "$out/reward.txt"\n'
    )
    task = make_task(script, toml='[verifier.env]\nLEVEL = "3"\n')
    assert (await judged(make_sandbox, task)).reward == 0.5


@pytest.mark.parametrize(
    "agent",
    [
        "mkdir -p {root}/logs/verifier; echo 1 > {root}/logs/verifier/reward.txt",
        "mkdir -p {root}/tests; echo 'echo 1 > ../logs/verifier/reward.txt' > {root}/tests/test.sh",
        "mkdir -p {root}/tests/more; ln -sf {root}/app {root}/tests/helper",
        "ln -sf {root}/app {root}/tests",
        "rm -rf {root}/logs/verifier; ln -s {root}/app {root}/logs/verifier; echo 1 > reward.txt",
        "mkdir -p {root}/logs/verifier; ln -s {root}/app/given {root}/logs/verifier/reward.txt",
        "echo in the way > {root}/logs/verifier",
        "chmod 000 {root}/logs",
        "cd /; rm -rf {root}/app",
    ],
)
async def test_nothing_that_the_agent_left_counts_or_breaks_the_verifier(make_sandbox, make_task, agent):
    task = make_task(CHECK_ANSWER)
    async with running(make_sandbox, task) as sandbox:
        root = sandbox.handle.environment.get("WHIPPLETREE_ROOT", "")
        await sandbox.exec(["/bin/sh", "-c", agent.format(root=root)], timeout=10.0)
        result = await verify(task, sandbox, timeout=20.0)
    assert (result.reward, result.cause) == (0.0, None), result


async def test_tests_of_an_earlier_look_alike_are_replaced(make_sandbox, make_task):
    task = make_task(HEAD + 'ls "$root/tests" > "$out/seen"; echo 1 > "$out/reward.txt"; cat "$out/seen"\n')
    async with running(make_sandbox, task) as sandbox:
        root = sandbox.handle.environment.get("WHIPPLETREE_ROOT", "")
        await sandbox.exec(["/bin/sh", "-c", f"mkdir {root}/tests; echo planted > {root}/tests/conftest.py"], timeout=10.0)
        result = await verify(task, sandbox, timeout=20.0)
    assert result.output.split() == ["helper", "test.sh"]


async def test_the_tests_are_not_there_while_the_agent_works(make_sandbox, make_task):
    task = make_task(CHECK_ANSWER)
    async with running(make_sandbox, task) as sandbox:
        root = sandbox.handle.environment.get("WHIPPLETREE_ROOT", "")
        seen = await sandbox.exec(
            ["/bin/sh", "-c", f"find {root or '/'} -xdev -name 'test.sh' -o -name solve.sh 2>/dev/null"], timeout=20.0
        )
    assert "a-task" not in seen.output
    assert "/tests/test.sh" not in seen.output.split()


async def each_judged(make_task, scripts: list[str]) -> list:
    """One result per test script, all judged in one sandbox: what the scripts write is what matters, not the backend."""
    with tempfile.TemporaryDirectory(prefix="wt-", ignore_cleanup_errors=True) as root:
        config = SandboxConfig(kind="process", root=root)
        async with running(lambda spec: create(config, spec, gateway=("127.0.0.1", 9)), make_task(scripts[0])) as sandbox:
            return [await verify(make_task(script), sandbox, timeout=20.0) for script in scripts]


async def test_reward_texts_that_are_numbers(make_task):
    texts = {"1": 1.0, " 0.25\n\n": 0.25, "-1": -1.0, "1e-3": 0.001, "7": 7.0}
    results = await each_judged(make_task, [HEAD + f"printf '%s' '{text}' > \"$out/reward.txt\"\n" for text in texts])
    assert [(result.reward, result.cause) for result in results] == [(reward, None) for reward in texts.values()]


async def test_reward_texts_that_are_none(make_task):
    texts = ["", "nan", "inf", "-Infinity", "one", "1 2", "1e999", "\\303\\244", "0x1", "1,5"]
    scripts = [HEAD + f"echo said so; printf '{text}' > \"$out/reward.txt\"\n" for text in texts]
    for result in await each_judged(make_task, scripts):
        assert result.reward is None
        assert result.cause.cause is CauseClass.VERIFIER
        assert "reward.txt" in result.cause.message
        assert "said so" in result.cause.message


async def test_named_scores(make_task):
    texts = {
        '{"reward": 0.5}': (0.5, {"reward": 0.5}),
        '{"accuracy": 1}': (1.0, {"accuracy": 1.0}),
        '{"style": 0.1, "reward": 0.9}': (0.9, {"style": 0.1, "reward": 0.9}),
    }
    results = await each_judged(make_task, [HEAD + f"printf '%s' '{text}' > \"$out/reward.json\"\n" for text in texts])
    assert [(result.reward, result.scores) for result in results] == list(texts.values())


async def test_what_single_calls_earned_is_read_beside_the_reward(make_task):
    calls = HEAD + """echo 1 > "$out/reward.txt"; printf '%s' '{"turns": {"1": 0.5}}' > "$out/call_rewards.json"\n"""
    wrong = HEAD + """echo 1 > "$out/reward.txt"; printf '%s' '{"turns": {"1": "a"}}' > "$out/call_rewards.json"\n"""
    good, bad = await each_judged(make_task, [calls, wrong])
    assert (good.reward, good.call_rewards) == (1.0, (CallReward(of="turn", number=1, reward=0.5),))
    assert (bad.reward, bad.cause.cause, bad.call_rewards) == (None, CauseClass.VERIFIER, ())
    assert "call_rewards.json" in bad.cause.message


async def test_named_scores_that_give_no_reward(make_task):
    texts = ["{}", "[1]", "1", '{"a": "1"}', '{"a": true}', '{"a": 1, "b": 2}', '{"reward": NaN}', "{", '{"a": null}']
    scripts = [HEAD + f"printf '%s' '{text}' > \"$out/reward.json\"\n" for text in texts]
    for result in await each_judged(make_task, scripts):
        assert result.reward is None
        assert result.cause.cause is CauseClass.VERIFIER
        assert result.cause.next_step


async def test_reward_txt_goes_before_reward_json(make_sandbox, make_task):
    task = make_task(HEAD + 'echo 1 > "$out/reward.txt"; echo \'{"reward": 0}\' > "$out/reward.json"\n')
    assert (await judged(make_sandbox, task)).reward == 1.0


@pytest.mark.parametrize("test", ["#!/bin/sh\necho crash; exit 3\n", "#!/no/such/interpreter\n", "#!/bin/sh\nkill -9 $$\n"])
async def test_broken_tests_are_none_never_zero(make_sandbox, make_task, test):
    result = await judged(make_sandbox, make_task(test))
    assert result.reward is None
    assert result.cause.cause is CauseClass.VERIFIER


async def test_tests_that_run_too_long_are_killed_at_their_own_limit(make_sandbox, make_task):
    task = make_task(HEAD + 'echo 1 > "$out/reward.txt"; echo begun; sleep 60\n', toml="[verifier]\ntimeout_sec = 4.0\n")
    result = await judged(make_sandbox, task)
    assert result.reward is None
    assert result.cause.cause is CauseClass.VERIFIER
    assert "ran past 4 s" in result.cause.message
    assert "begun" in result.cause.message


async def test_a_link_as_reward_is_not_followed(make_sandbox, make_task):
    task = make_task(HEAD + 'echo 1 > "$root/app/one"; ln -s "$root/app/one" "$out/reward.txt"\n')
    result = await judged(make_sandbox, task)
    assert result.reward is None
    assert result.cause is not None


class FaultySandbox:
    """Stands in for a sandbox whose machine is gone: it fails, or never answers."""

    isolation = "none"
    handle = None

    def __init__(self, answers: bool) -> None:
        self.answers = answers

    async def put(self, source, target):
        if self.answers:
            raise SandboxError("the sandbox is gone", "look at the host")
        await asyncio.Event().wait()

    async def exec(self, argv, **options):
        await self.put(None, "")


async def test_a_lost_sandbox_is_the_sandboxs_fault_and_not_raised(make_task):
    result = await verify(make_task(CHECK_ANSWER), FaultySandbox(answers=True), timeout=1.0)
    assert result.reward is None
    assert (result.cause.cause, result.cause.message) == (CauseClass.SANDBOX, "the sandbox is gone")


async def test_a_silent_sandbox_is_waited_for_with_a_limit(make_task, monkeypatch):
    monkeypatch.setattr("whippletree.tasks.verifier.TRANSFER_LIMIT", 0.05)
    result = await verify(make_task(CHECK_ANSWER), FaultySandbox(answers=False), timeout=0.05)
    assert result.reward is None
    assert "did not answer" in result.cause.message


async def test_tests_that_vanished_are_the_tasks_fault(make_sandbox, make_task):
    task = make_task(CHECK_ANSWER)
    async with running(make_sandbox, task) as sandbox:
        shutil.rmtree(task.steps[0].judging.tests[0])
        result = await verify(task, sandbox, timeout=20.0)
    assert result.reward is None
    assert result.cause.cause in (CauseClass.TASK, CauseClass.SANDBOX)
