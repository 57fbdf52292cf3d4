"""`whippletree tasks`."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_parts import clean, needs_images, write_image_task

from whippletree.cli.main import main
from whippletree.sandboxes import probe

TEST = """#!/bin/sh
root=${0%/tests/test.sh}
[ -e done ] && r=1 || r=0
echo "{\\"correct\\": $r, \\"style\\": 0.5}" > "$root/logs/verifier/reward.json"
echo judged
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    texts = {
        "task.toml": 'artifacts = ["done"]\n[environment.env]\nLEVEL = "${LEVEL:-3}"\n',
        "instruction.md": "make done",
        "environment/Dockerfile": "FROM x\nWORKDIR /app\n",
        "tests/test.sh": TEST,
        "solution/solve.sh": "#!/bin/sh\ntouch done\n",
    }
    for name, text in texts.items():
        path = tmp_path / "tasks" / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tasks" / "mine"


def told(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> str:
    assert main(["tasks", *map(str, words)]) == status
    return capsys.readouterr().out


def test_list_shows_each_task_or_its_first_problem(capsys: pytest.CaptureFixture[str], task: Path):
    broken = task.parent / "another"
    broken.mkdir()
    (broken / "task.toml").write_text("x = 1\n")
    out = told(capsys, "list", task.parent)
    assert out.splitlines()[0].startswith("another  4 problems, first: ") and "unknown key x" not in out.splitlines()[1]
    assert out.splitlines()[1] == "mine  agent 600 s"
    readings = json.loads(told(capsys, "list", task.parent, "--json"))
    assert [("task" in reading, len(reading.get("problems", []))) for reading in readings] == [(False, 4), (True, 0)]
    assert main(["tasks", "list", str(task)]) == 2
    assert "no task in" in capsys.readouterr().err


def test_validate_shows_all_problems_of_all_tasks(capsys: pytest.CaptureFixture[str], task: Path, tmp_path: Path):
    assert told(capsys, "validate", task) == f"ok   {task}\n"
    (task / "task.toml").write_text("[environment]\ngpus = 1\ncpus = 4\nallow_internet = true\n[agent]\ntimeout_sec = 0\n")
    out = told(capsys, "validate", task, tmp_path, status=1)
    for part in (f"FAIL {task}", "environment.gpus = 1", "agent.timeout_sec = 0", f"FAIL {tmp_path}", "task.toml: cannot read"):
        assert part in out
    (task / "task.toml").write_text("multi_step_reward_mode = 'mean'\n")
    assert "note: multi_step_reward_mode = mean: recorded" in told(capsys, "validate", task)
    (first, second) = json.loads(told(capsys, "validate", task, tmp_path, "--json", status=1))
    assert "task" in first and {"cause", "next_step"} == set(second["problems"][0])


def test_a_directory_of_tasks_stands_for_all_of_them(capsys: pytest.CaptureFixture[str], task: Path):
    (task.parent / "journal.jsonl").write_text("{}\n")
    other = task.parent / "another"
    shutil.copytree(task, other)
    assert told(capsys, "validate", task.parent) == f"ok   {other}\nok   {task}\n"
    assert told(capsys, "check", task.parent, "--sandbox", "process", "--reward", "correct") == f"ok   {other}\nok   {task}\n"
    assert main(["tasks", "check", str(task.parent / "journal.jsonl")]) == 2
    assert "is not a directory" in capsys.readouterr().err


def test_variables_are_given_by_name(capsys: pytest.CaptureFixture[str], task: Path):
    assert json.loads(told(capsys, "show", task))["place"]["environment"] == {"LEVEL": "3"}
    shown = json.loads(told(capsys, "show", task, "--variable", "LEVEL=a=b"))
    assert shown["place"]["environment"] == {"LEVEL": "a=b"}
    assert main(["tasks", "show", str(task), "--variable", "LEVEL"]) == 2
    assert "NAME=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("acting", "reward"),
    [(["--oracle"], "1"), ([], "0.2"), (["--command", "echo hi; touch done"], "1"), (["--command", "false"], "0.2")],
)
def test_run_lets_someone_act_and_tells_the_reward(
    capsys: pytest.CaptureFixture[str], task: Path, acting: list[str], reward: str
):
    rule = ["--reward", "0.8 * correct + 0.4 * style"]
    out = told(capsys, "run", task, "--sandbox", "process", *acting, *rule)
    assert f"reward {reward} = 0.8 * correct + 0.4 * style; correct" in out and "the tests said:\njudged" in out
    assert ("hi\n" in out) == ("echo hi; touch done" in acting) and ("[status 1]" in out) == ("false" in acting)


def test_run_without_a_reward_exits_with_1_and_says_why(capsys: pytest.CaptureFixture[str], task: Path, tmp_path: Path):
    out = told(capsys, "run", task, "--sandbox", "process", "--oracle", "--artifacts", tmp_path / "out", status=1)
    assert "no reward: verifier in verify: the scores are correct, style" in out and "control.reward" in out
    assert (tmp_path / "out" / "app" / "done").exists()
    result = json.loads(told(capsys, "run", task, "--sandbox", "process", "--command", "echo hi", "--json", status=1))
    assert result["reward"] is None and result["cause"]["phase"] == "verify"


def test_what_is_typed_runs_inside_and_the_verifier_follows(
    capsys: pytest.CaptureFixture[str], task: Path, monkeypatch: pytest.MonkeyPatch
):
    typed = "mkdir sub; cd sub\nexport NAME='a b'\necho \"[$NAME] ${PWD##*/}\"\nfalse\ntouch ../done\nexit\necho never\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    out = told(capsys, "run", task, "--sandbox", "process", "--shell", "--reward", "correct")
    assert "make done" in out and "[a b] sub\n" in out and "[status 1]" in out
    assert "never" not in out and "reward 1 = correct" in out


def test_check_says_what_each_kind_of_run_earned(capsys: pytest.CaptureFixture[str], task: Path):
    assert told(capsys, "check", task, "--sandbox", "process", "--reward", "correct") == f"ok   {task}\n"
    (check,) = json.loads(told(capsys, "check", task, "--sandbox", "process", "--reward", "style", "--json", status=1))
    assert [len(check[kind]) for kind in ("untouched", "no_op", "oracle")] == [2, 2, 2]
    assert "doing nothing earns 0.5, which should be 0" in check["problems"]


def test_a_wrong_backend_or_rule_is_one_message(capsys: pytest.CaptureFixture[str], task: Path):
    for words, says in ((["--sandbox", "proces"], "did you mean process"), (["--reward", "a.b"], "a.b")):
        assert main(["tasks", "run", str(task), *words]) == 2
        assert says in capsys.readouterr().err


def test_a_network_is_what_the_flag_grants(capsys: pytest.CaptureFixture[str], task: Path):
    (task / "task.toml").write_text("[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.example', '10.0.0.1']\n")
    closed = told(capsys, "validate", task)
    assert 'agent.network_mode = allowlist of a.example, 10.0.0.1: not granted with control.network.tasks = "closed"' in closed
    assert "'10.0.0.1' is not granted" in told(capsys, "validate", task, "--network", "allowlist")
    (reading,) = json.loads(told(capsys, "validate", task, "--json", "--network", "open"))
    assert len(reading["task"]["notes"]) == 1 and "'10.0.0.1'" in reading["task"]["notes"][0]
    if not probe().works:
        pytest.skip("bubblewrap does not work on this machine")
    for mode, proxy in (("closed", ""), ("allowlist", "http://127.0.0.1:3128")):
        acting = ("--sandbox", "bubblewrap", "--command", "echo proxy=$HTTPS_PROXY", "--reward", "correct", "--network", mode)
        assert f"proxy={proxy}\n" in told(capsys, "run", task, *acting)


def test_a_task_that_needs_an_image_is_read_for_a_backend(capsys: pytest.CaptureFixture[str], task: Path) -> None:
    (task / "environment" / "Dockerfile").write_text("FROM x\nRUN make\nWORKDIR /app\n")
    (task / "task.toml").write_text("[environment]\nstorage_mb = 5\n")
    assert "Dockerfile:2: RUN is not supported" in told(capsys, "validate", task, status=1)
    out = told(capsys, "validate", task, "--sandbox", "process", status=1)
    assert "Dockerfile:2: RUN is not supported" in out and 'set sandbox.kind = "runc"' in out
    (task / "environment" / "Dockerfile").write_text("FROM x\nWORKDIR /app\n")
    assert "note: environment.storage_mb = 5: recorded" in told(capsys, "validate", task, "--sandbox", "process")
    assert main(["tasks", "validate", str(task), "--sandbox", "process", "--images", "always"]) == 2
    assert 'control.images = "always"' in capsys.readouterr().err


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory of this test's own, with a short path."""
    with tempfile.TemporaryDirectory(prefix="wt-c-", ignore_cleanup_errors=True) as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)
        clean(Path(name) / f"whippletree-images-{os.geteuid()}")


@needs_images
def test_a_task_on_an_image_is_read_run_and_checked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, temporary: Path
) -> None:
    test = "#!/bin/sh\n[ -e done ] && [ -e /built ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"
    path = write_image_task(tmp_path / "t", "RUN touch /built\n", test=test)
    (path / "solution").mkdir()
    (path / "solution" / "solve.sh").write_text("#!/bin/sh\ntouch done\n")
    assert "FAIL" in told(capsys, "validate", path, status=1)
    for words in (("validate", path), ("list", tmp_path)):
        assert "agent 600 s" in told(capsys, *words, "--sandbox", "runc") or words[0] == "validate"
    shown = json.loads(told(capsys, "show", path, "--sandbox", "runc"))
    assert shown["place"]["image"] == {"type": "BuiltImage", "context": str(path / "environment"), "seconds": 600.0}
    assert "reward 1" in told(capsys, "run", path, "--sandbox", "runc", "--oracle")
    assert "ok " in told(capsys, "check", path, "--sandbox", "runc")
    (path / "environment" / "Dockerfile").write_text("FROM scratch\nRUN no\n")
    assert main(["tasks", "run", str(path), "--sandbox", "runc"]) == 2
    assert "podman build" in capsys.readouterr().err
