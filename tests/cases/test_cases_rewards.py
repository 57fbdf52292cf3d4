"""Agents that help themselves to a reward: what they plant counts for nothing and is named."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from whippletree.sandboxes import SandboxConfig, create, probe
from whippletree.tasks import check_task, load_task, verify

CHECK = """#!/bin/sh
root=${0%/tests/test.sh}
grep -q yes answer.txt 2>/dev/null && r=1 || r=0
echo $r > "$root/logs/verifier/reward.txt"
"""


@pytest.fixture(params=["bubblewrap", "process"])
def make_sandbox(request: pytest.FixtureRequest) -> Any:
    if request.param == "bubblewrap" and not probe().works:
        pytest.skip("bubblewrap does not work on this machine")
    with tempfile.TemporaryDirectory(prefix="wt-", ignore_cleanup_errors=True) as root:
        yield lambda spec: create(SandboxConfig(kind=request.param, root=root), spec, gateway=("127.0.0.1", 9))


@pytest.fixture
def task_directory(tmp_path: Path) -> Path:
    texts = {
        "task.toml": "",
        "instruction.md": "write yes",
        "environment/Dockerfile": "FROM x\nWORKDIR /app\nCOPY files/ /app/\n",
        "environment/files/given": "given",
        "tests/test.sh": CHECK,
        "solution/solve.sh": "#!/bin/sh\necho yes > answer.txt\n",
    }
    for name, text in texts.items():
        path = tmp_path / "a-task" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "a-task"


async def attacked(make_sandbox: Any, directory: Path, script: str) -> Any:
    task = load_task(directory)
    sandbox = make_sandbox(task.sandbox_spec("case-1"))
    await sandbox.start()
    try:
        root = sandbox.handle.environment.get("WHIPPLETREE_ROOT", "")
        await sandbox.exec(["/bin/sh", "-c", script.format(root=root)], timeout=10.0)
        await sandbox.kill_all()
        return await verify(task, sandbox, timeout=20.0)
    finally:
        await sandbox.stop()


async def test_F01_a_reward_that_the_agent_wrote_is_ignored_and_flagged(make_sandbox: Any, task_directory: Path):
    planted = "mkdir -p {root}/logs/verifier; echo 1 > {root}/logs/verifier/reward.txt"
    result = await attacked(make_sandbox, task_directory, planted)
    assert (result.reward, result.cause) == (0.0, None)
    assert result.tampering == ("/logs/verifier held files already",)


async def test_F01_a_process_that_overwrites_the_reward_is_ended_before_grading(make_sandbox: Any, task_directory: Path):
    script = "(mkdir -p {root}/logs/verifier; while :; do echo 1 > {root}/logs/verifier/reward.txt; done) >/dev/null 2>&1 &"
    result = await attacked(make_sandbox, task_directory, script + " sleep 0.2")
    assert (result.reward, result.cause) == (0.0, None)
    assert result.tampering


async def test_F02_planted_tests_and_linked_logs_do_not_survive_into_grading(make_sandbox: Any, task_directory: Path):
    script = "mkdir -p {root}/tests; echo 'raise SystemExit' > {root}/tests/conftest.py; "
    script += "mkdir -p {root}/logs; ln -s /etc {root}/logs/verifier"
    result = await attacked(make_sandbox, task_directory, script)
    assert (result.reward, result.cause) == (0.0, None)
    assert "/logs/verifier held files already" in result.tampering  # a root that is read-only has refused /tests itself
    assert not Path("/etc/reward.txt").exists()


async def test_F02_an_honest_attempt_is_not_flagged(make_sandbox: Any, task_directory: Path):
    result = await attacked(make_sandbox, task_directory, "echo yes > answer.txt; mkdir -p {root}/logs/agent")
    assert (result.reward, result.tampering) == (1.0, ())


async def test_F03_a_repository_with_later_commits_fails_the_check_of_its_task(make_sandbox: Any, task_directory: Path):
    repository = task_directory / "environment" / "files"

    def git(*arguments: str) -> None:
        command = ["git", "-c", "user.email=a@b.c", "-c", "user.name=t", *arguments]
        subprocess.run(command, cwd=repository, check=True, capture_output=True)

    git("init", "-q")
    for message in ("base", "the fix"):
        git("add", ".")
        git("commit", "-q", "--allow-empty", "-m", message)
    git("reset", "-q", "--hard", "HEAD~1")
    check = await check_task(load_task(task_directory), make_sandbox)
    assert len(check.problems) == 1 and "1 commits beyond HEAD" in check.problems[0]
    git("reflog", "expire", "--expire=now", "--all")
    git("gc", "-q", "--prune=now")
    assert (await check_task(load_task(task_directory), make_sandbox)).problems == ()
