"""Tasks run without a model, step by step."""

from __future__ import annotations

import pytest

from whippletree.errors import SandboxError
from whippletree.tasks import Task, check_task
from whippletree.tasks.reward import RewardExpression
from whippletree.tasks.trial import do_nothing, oracle, run_trial
from whippletree.types import CauseClass

HEAD = "#!/bin/sh\nroot=${0%/tests/test.sh}\nout=$root/logs/verifier\n"
GRADE = HEAD + '[ -e "$1" ] && r=1 || r=0\necho "{\\"reward\\": $r, \\"style\\": 0.5}" > "$out/reward.json"\n'


def two_steps(make_task, toml: str = "", **files: str) -> Task:
    """First make `one`, then `two`; the second step's tests demand both, and that nothing of the first's tests is seen."""
    texts = {
        "steps/one/instruction.md": "make one",
        "steps/one/tests/test.sh": GRADE.replace("$1", "one"),
        "steps/one/tests/only-of-one": "x",
        "steps/one/solution/solve.sh": "#!/bin/sh\ntouch one\n",
        "steps/two/instruction.md": "make two",
        "steps/two/tests/test.sh": GRADE.replace('-e "$1"', '-e one ] && [ -e two ] && [ -e "$root/tests/helper"'),
        "steps/two/solution/solve.sh": "#!/bin/sh\ntouch two\n",
        **files,
    }
    steps = '[[steps]]\nname = "one"\nmin_reward = 1.0\n[[steps]]\nname = "two"\n'
    return make_task("#!/bin/sh\nexit 9\n", toml=toml + steps, **texts)


async def trial(task: Task, make_sandbox, acting=oracle, **more):
    return await run_trial(task, make_sandbox, acting, name="trial-1", timeout=20.0, **more)


async def test_steps_run_in_order_in_one_sandbox_and_their_scores_are_kept(make_sandbox, make_task):
    result = await trial(two_steps(make_task), make_sandbox)
    assert (result.reward, result.scores, result.cause) == (1.0, {"reward": 1.0, "style": 0.5}, None)
    assert [(step.name, step.reward, step.scores["style"]) for step in result.steps] == [("one", 1.0, 0.5), ("two", 1.0, 0.5)]


async def test_a_step_below_its_least_reward_is_the_last(make_sandbox, make_task):
    result = await trial(two_steps(make_task), make_sandbox, do_nothing)
    assert [step.name for step in result.steps] == ["one"]
    assert (result.reward, result.scores) == (0.0, {"reward": 0.0, "style": 0.25})


async def test_the_next_steps_agent_finds_nothing_of_the_tests(make_sandbox, make_task):
    seen = []

    async def looks(task, step, sandbox):
        script = 'touch one two; find "$WHIPPLETREE_ROOT/tests" "$WHIPPLETREE_ROOT/logs/verifier" -type f 2>/dev/null; :'
        seen.append((await sandbox.exec(["/bin/sh", "-c", script], timeout=10.0)).output)

    result = await trial(two_steps(make_task), make_sandbox, looks)
    assert result.reward == 1.0 and seen == ["", ""] and result.tampering == ()


async def test_a_rule_combines_the_scores_of_the_task(make_sandbox, make_task):
    result = await trial(two_steps(make_task), make_sandbox, rule=RewardExpression("0.5 * reward + style"))
    assert (result.reward, result.expression) == (1.0, "0.5 * reward + style")


async def test_artifacts_of_each_step_are_kept_apart(make_sandbox, make_task, tmp_path):
    result = await trial(two_steps(make_task, 'artifacts = ["one"]\n'), make_sandbox, directory=tmp_path / "out")
    assert result.reward == 1.0
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("one") if path.is_file())
    assert found == ["steps/one/app/one", "steps/two/app/one"]


async def test_a_broken_set_up_is_the_tasks_fault_and_names_its_phase(make_sandbox, make_task):
    task = two_steps(make_task, **{"steps/two/workdir/setup.sh": "#!/bin/sh\nexit 5\n"})
    result = await trial(task, make_sandbox)
    assert result.reward is None and result.cause is not None
    assert (result.cause.cause, result.cause.phase) == (CauseClass.TASK, "setup")
    assert [step.name for step in result.steps] == ["one"]
    sick = make_task(GRADE, toml='[environment.healthcheck]\ncommand = "false"\nretries = 1\n', **{"steps": None})
    result = await trial(sick, make_sandbox)
    assert result.cause is not None and result.cause.phase == "healthcheck"


async def test_a_separate_verifier_judges_what_was_handed_over(make_sandbox, make_task):
    judge = (
        HEAD + '[ "$(cat answer.txt)" = yes ] && [ ! -e other ] && echo 1 > "$out/reward.txt" || echo 0 > "$out/reward.txt"\n'
    )
    solve = "#!/bin/sh\necho yes > answer.txt; touch other\n"
    task = make_task(judge, solve=solve, toml='artifacts = ["answer.txt"]\n[verifier]\nenvironment_mode = "separate"\n')
    check = await check_task(task, make_sandbox)
    assert check.problems == ()


async def test_agent_and_tests_run_as_the_users_that_the_task_names(make_sandbox, make_task):
    probe = make_sandbox(make_task(GRADE).sandbox_spec("users"))
    await probe.start()
    try:
        await probe.exec(["/bin/true"], timeout=10.0, user="nobody")
        await probe.exec(["/bin/true"], timeout=10.0, user="0")
    except SandboxError as error:
        pytest.skip(f"this backend has no users here: {error.cause}")
    finally:
        await probe.stop()
    test = HEAD + '[ "$(cat answer.txt)" = nobody ] && [ "$(id -u)" = 0 ] && r=1 || r=0\necho $r > "$out/reward.txt"\n'
    users = '[agent]\nuser = "nobody"\n[verifier]\nuser = 0\n'
    result = await trial(make_task(test, solve="#!/bin/sh\nid -un > answer.txt\n", toml=users), make_sandbox)
    assert (result.reward, result.tampering) == (1.0, ())


async def test_a_sandbox_that_does_not_start_is_the_sandboxes_fault(make_task):
    class Dead:
        stopped = False

        async def start(self):
            raise SandboxError("no machine")

        async def stop(self):
            self.stopped = True

    dead = Dead()
    result = await trial(make_task(GRADE), lambda spec: dead)
    assert result.cause is not None and (result.cause.cause, result.cause.phase) == (CauseClass.SANDBOX, "boot")
    assert dead.stopped


async def test_a_check_names_a_verdict_that_changes(make_sandbox, make_task, tmp_path):
    flip = tmp_path / "flip"
    test = HEAD + f'if [ -e {flip} ]; then rm {flip}; echo 1; else touch {flip}; echo 0; fi > "$out/reward.txt"\n'
    task = make_task(test)
    if "bubblewrap" in str(make_sandbox(task.sandbox_spec("look")).isolation):
        pytest.skip("a bubblewrap sandbox keeps nothing from one run to the next")
    check = await check_task(task, make_sandbox)
    assert "flaky: doing nothing was judged 2 times and got 0, 1" in check.problems
    assert "flaky: the oracle was judged 2 times and got 0, 1" in check.problems
