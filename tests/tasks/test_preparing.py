"""Steps' files and scripts, and healthchecks, in real sandboxes."""

from __future__ import annotations

import time

import pytest

from whippletree.errors import TaskError
from whippletree.tasks import Task
from whippletree.tasks.preparing import await_health, prepare_step
from whippletree.tasks.task import Healthcheck

STEPS = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'


def stepped(make_task, **files: str) -> Task:
    both = {"steps/one/instruction.md": "first", "steps/two/instruction.md": "second"}
    return make_task("#!/bin/sh\n", toml=STEPS, **both, **files)


async def said(sandbox, script: str) -> str:
    return (await sandbox.exec(["/bin/sh", "-c", script], timeout=10.0)).output.strip()


async def test_files_replace_those_of_the_same_name_and_the_script_runs_and_goes(make_sandbox, make_task):
    task = stepped(
        make_task,
        **{
            "steps/two/workdir/given": "new",
            "steps/two/workdir/deep/er": "x",
            "steps/two/workdir/setup.sh": '#!/bin/sh\n[ "$(cat given)" = new ] && echo ran > made\n',
        },
    )
    sandbox = make_sandbox(task.sandbox_spec("prepare-1"))
    await sandbox.start()
    try:
        await prepare_step(task, task.steps[0], sandbox, timeout=10.0)  # has none
        assert await said(sandbox, "cat given; ls") == "givengiven"
        await prepare_step(task, task.steps[1], sandbox, timeout=10.0)
        assert await said(sandbox, "cat given made deep/er; ls") == "newran\nxdeep\ngiven\nmade"
        assert await said(sandbox, 'ls "$WHIPPLETREE_ROOT/tmp"') == ""
    finally:
        await sandbox.stop()


@pytest.mark.parametrize(
    ("script", "limit", "says"), [("echo lost; exit 3", 30.0, "ended with 3: lost"), ("sleep 60", 0.5, "ran past 0.5 s")]
)
async def test_a_script_that_fails_is_named(make_sandbox, make_task, script, limit, says):
    task = stepped(make_task, **{"steps/one/workdir/setup.sh": f"#!/bin/sh\n{script}\n"})
    sandbox = make_sandbox(task.sandbox_spec("prepare-2"))
    await sandbox.start()
    try:
        with pytest.raises(TaskError, match=rf"steps/one/workdir/setup\.sh {says}"):
            await prepare_step(task, task.steps[0], sandbox, timeout=limit)
    finally:
        await sandbox.stop()


@pytest.fixture
async def sandbox(make_sandbox, make_task):
    made = make_sandbox(make_task("#!/bin/sh\n").sandbox_spec("health-1"))
    await made.start()
    yield made
    await made.stop()


COUNT = "echo x >> tries; [ $(wc -l < tries) -ge {} ]"


async def test_a_healthcheck_waits_until_it_succeeds(sandbox):
    await await_health(Healthcheck(command=COUNT.format(3), interval=0.01, retries=3), sandbox)
    assert await said(sandbox, "wc -l < tries") == "3"


async def test_a_healthcheck_ends_after_its_retries(sandbox):
    check = Healthcheck(command=f"{COUNT.format(9)} || {{ echo not yet; false; }}", interval=0.01, retries=2)
    with pytest.raises(TaskError, match=r"ended with 1, 2 times in a row: not yet"):
        await await_health(check, sandbox)
    assert await said(sandbox, "wc -l < tries") == "2"


async def test_failures_of_the_start_period_do_not_count(sandbox):
    check = Healthcheck(command=COUNT.format(6), start_period=60.0, start_interval=0.01, retries=1)
    await await_health(check, sandbox)


async def test_each_check_has_a_limit_of_its_own(sandbox):
    begun = time.monotonic()
    with pytest.raises(TaskError, match=r"took more than 0.1 s, 1 times"):
        await await_health(Healthcheck(command="sleep 60", timeout=0.1, retries=1), sandbox)
    assert time.monotonic() - begun < 30.0
