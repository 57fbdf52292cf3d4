"""whippletree/cli/"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest.mock import ANY

import pytest

from whippletree import __version__
from whippletree.cli.main import build_parser, main
from whippletree.cli.training import Counts
from whippletree.configuration import load
from whippletree.loop.config import RunConfig
from whippletree.loop.layout import Layout
from whippletree.store import open_store

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.toml"))


def told(capsys: pytest.CaptureFixture[str], *argv: str | Path, status: int = 0) -> str:
    """What a command prints; its status is checked."""
    found = main([str(argument) for argument in argv])
    out, err = capsys.readouterr()
    assert found == status, err
    return err if status == 2 else out


def test_the_version(capsys: pytest.CaptureFixture[str]):
    assert told(capsys, "version") == f"{__version__}\n"


def test_the_installed_command_and_the_module_are_one():
    for command in ([sys.executable, "-m", "whippletree.cli"], [str(Path(sys.executable).with_name("whippletree"))]):
        done = subprocess.run([*command, "version"], capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == f"{__version__}\n"


def commands(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], argparse.ArgumentParser]:
    """Every command that can be run, by its words."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        return {path: parser}
    return {key: value for name, child in below[0].choices.items() for key, value in commands(child, (*path, name)).items()}


def test_the_commands_that_the_docs_name_are_there():
    assert set(commands(build_parser())) == {
        ("train",), ("eval",), ("gateway",), ("engine",), ("controller",), ("learner",), ("version",), ("report",), ("sft",),
        *(("tasks", "make", kind) for kind in ("trail", "shell", "data", "search", "bugs")),
        *(("tasks", "import", kind) for kind in ("harbor", "swe", "questions")),
        *(("tasks", name) for name in ("list", "validate", "check", "show", "run", "inject", "filter")),
        *(("harness", name) for name in ("list", "show", "install", "check")),
        *(("rollouts", name) for name in ("list", "show", "export", "reconcile", "grade", "shell")),
        ("config", "show"), ("config", "check"), ("export", "sft"),
    }  # fmt: skip


def test_every_option_has_help():
    for words, parser in commands(build_parser()).items():
        for action in parser._actions:
            if action.option_strings:
                assert action.help, f"{' '.join(words)} {action.option_strings[0]}"


def test_an_option_that_is_not_written_out_is_an_error(capsys: pytest.CaptureFixture[str]):
    for words, parser in commands(build_parser()).items():
        assert not parser.allow_abbrev, words
    with pytest.raises(SystemExit):
        main(["eval", "grid.toml", "--overwrit"])
    assert "unrecognized arguments: --overwrit" in capsys.readouterr().err


# --- errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "cause", "next_step"),
    [
        (["config", "check", "{run}", "--set", "loop.stepz=3"], "unknown key loop.stepz", "did you mean loop.steps?"),
        (["config", "show", "{run}", "--set", "control.launch=poll"], "control.launch is 'poll'", "did you mean pool?"),
        (
            ["config", "check", "{run}", "--set", "sources.0.harness.settings.step_limt=3"],
            "unknown key step_limt",
            "step_limit",
        ),
        (["config", "check", "{tmp}/none.toml"], "cannot read", "give the path of a run file"),
        (["train"], "no run file", "--resume DIR"),
        (["train", "{run}", "--set", "sources.0.harness.settings.mode=loud"], "mode is 'loud'", "toolcall"),
        (["train", "--resume", "{tmp}/none"], "holds no run", "give the directory of a run"),
        (["eval", "--resume", "{demo}", "--set", "run.seed=3"], "own configuration", "leave out"),
        (["gateway", "--run-dir", "{tmp}"], "cannot read", "give the path"),
        (["tasks", "show", "{tmp}"], "task.toml", "{tmp}"),
        (["harness", "show", "mini"], "harness 'mini' is not known", "mini-swe-agent"),
        (["rollouts", "list", "{tmp}"], "has no store", "give the directory of a run"),
        (["rollouts", "show", "{demo}", "nobody"], "nobody", ""),
        (["report", "{tmp}/none"], "holds no run", "give the directory of a run"),
    ],
)
def test_an_error_is_one_line_with_cause_and_next_step(
    capsys: pytest.CaptureFixture[str], run_file: Path, recorded: Layout, argv: list[str], cause: str, next_step: str
):
    places = {"run": run_file, "tmp": run_file.parent, "demo": recorded.directory}
    message = told(capsys, *(word.format(**places) for word in argv), status=2)
    assert message.startswith(f"whippletree {argv[0]}: ")
    assert message.count("\n") == 1
    assert cause.format(**places) in message
    assert next_step.format(**places) in message


def test_a_run_of_the_same_name_is_not_overwritten(capsys: pytest.CaptureFixture[str], run_file: Path, recorded: Layout):
    message = told(capsys, "train", run_file, "--run-dir", recorded.directory, status=2)
    assert "holds a run" in message
    assert f"--resume {recorded.directory}" in message
    assert recorded.summary.is_file()


def test_wrong_usage_has_status_2():
    with pytest.raises(SystemExit) as caught:
        main(["tasks", "polish"])
    assert caught.value.code == 2


def test_a_closed_pipe_is_no_error(run_file: Path):
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "whippletree.cli", "config", "show", str(run_file)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 0


def test_ctrl_c_has_status_130(monkeypatch: pytest.MonkeyPatch, recorded: Layout):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("whippletree.ui.report.write_report", interrupted)
    assert main(["report", str(recorded.directory)]) == 130


# --- config --------------------------------------------------------------------------------------------------------------


def test_config_show_prints_a_file_that_loads_to_the_same(capsys: pytest.CaptureFixture[str], run_file: Path, tmp_path: Path):
    text = told(capsys, "config", "show", run_file, "--set", "loop.steps=9", "--set", "run.name=nine")
    shown = tmp_path / "shown.toml"
    shown.write_text(text, encoding="utf-8")
    assert load(RunConfig, shown) == load(RunConfig, run_file, ("loop.steps=9", "run.name=nine"))
    assert "# Batches in all." in text and "\nsteps = 9\n" in text


def test_config_show_without_a_file_prints_the_defaults(capsys: pytest.CaptureFixture[str]):
    text = told(capsys, "config", "show", "--set", "engine.kind=vllm")
    assert tomllib.loads(text)["loop"]["steps"] == 40
    assert '[engine]\nkind = "vllm"\n' in text


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_right(capsys: pytest.CaptureFixture[str], path: Path):
    assert told(capsys, "config", "check", path) == f"{path}: ok\n"


def test_there_are_examples():
    assert "demo.toml" in [path.name for path in EXAMPLES]


# --- tasks ---------------------------------------------------------------------------------------------------------------


def test_tasks_are_made_shown_and_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    out = told(capsys, "tasks", "make", "trail", tmp_path / "t", "--train", "2", "--heldout", "1", "--seed", "5")
    assert out == f"2 training tasks and 1 held-out tasks in {tmp_path / 't'}\n"
    (task,) = (tmp_path / "t" / "heldout").iterdir()
    assert '"instruction": "' in told(capsys, "tasks", "show", task)
    assert told(capsys, "tasks", "check", task) == f"ok   {task}\n"


def test_a_task_that_rewards_doing_nothing_fails_its_check(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    told(capsys, "tasks", "make", "trail", tmp_path, "--train", "1", "--heldout", "0")
    (task,) = (tmp_path / "train").iterdir()
    script = task / "tests" / "test.sh"
    script.write_text("#!/bin/sh\necho 1 > ${0%/tests/test.sh}/logs/verifier/reward.txt\n", encoding="utf-8")
    out = told(capsys, "tasks", "check", task, status=1)
    assert out.startswith(f"FAIL {task}\n")
    assert "doing nothing earns 1" in out


# --- harness -------------------------------------------------------------------------------------------------------------


def test_harnesses_are_listed_and_shown(capsys: pytest.CaptureFixture[str]):
    lines = told(capsys, "harness", "list").splitlines()
    assert lines[0].split() == ["harness", "version", "launch", "package", "state"]
    assert [line.split()[:2] for line in lines if line.startswith("mini")] == [["mini-swe-agent", "2.4.6"]]
    assert [line.split()[-2:] for line in lines if line.startswith("command")] == [["none", "ready"]]
    reports = {report["name"]: report for report in json.loads(told(capsys, "harness", "list", "--json"))}
    assert reports["mini-swe-agent"]["package"]["kind"] == "extra" and "package" not in reports["command"]
    facts, settings = told(capsys, "harness", "show", "mini-swe-agent").split("\n# ", 1)
    assert facts.startswith("mini-swe-agent 2.4.6\n") and "variations           system, steps" in facts
    assert tomllib.loads(f"# {settings}")["step_limit"] == ANY
    assert "# How the model asks for a command" in f"# {settings}"
    shown = json.loads(told(capsys, "harness", "show", "mini-swe-agent", "--json"))
    assert (shown["version"], shown["facts"]["launches"]) == ("2.4.6", ["process", "pool"])


# --- rollouts and report -------------------------------------------------------------------------------------------------


def test_rollouts_are_listed_and_filtered(capsys: pytest.CaptureFixture[str], recorded: Layout):
    lines = told(capsys, "rollouts", "list", recorded.directory).splitlines()
    assert len(lines) == 1 + 9
    assert lines[1].split()[:3] == ["eval00000-trail-trail-000-00", "trail-000", "succeeded"]
    assert len(told(capsys, "rollouts", "list", recorded.directory, "--limit", "2").splitlines()) == 3
    assert len(told(capsys, "rollouts", "list", recorded.directory, "--state", "failed").splitlines()) == 1
    assert len(told(capsys, "rollouts", "list", recorded.directory, "--purpose", "train").splitlines()) == 1


def test_a_rollout_is_shown(capsys: pytest.CaptureFixture[str], recorded: Layout):
    text = told(capsys, "rollouts", "show", recorded.directory, "eval00002-trail-trail-001-00")
    assert "start at amber and submit the code" in text
    assert "verifier: reward" in text


def test_a_rollout_is_exported_and_agrees_with_its_own_export(
    capsys: pytest.CaptureFixture[str], recorded: Layout, tmp_path: Path
):
    rollout = "eval00002-trail-trail-001-00"
    text = told(capsys, "rollouts", "export", recorded.directory, rollout)
    trajectory = tmp_path / "trajectory.json"
    trajectory.write_text(text, encoding="utf-8")
    compared = told(capsys, "rollouts", "reconcile", recorded.directory, rollout, trajectory)
    assert compared == "3 turns of the harness, 3 captured calls, 3 pairs\n"
    trajectory.write_text(text.replace('"completion_token_ids":[20,', '"completion_token_ids":[21,'), encoding="utf-8")
    compared = told(capsys, "rollouts", "reconcile", recorded.directory, rollout, trajectory, status=1)
    assert compared.count("FATAL sampled_ids: step") == 3
    assert "completion_token_ids" not in told(capsys, "rollouts", "export", recorded.directory, rollout, "--no-tokens")


def test_a_report_is_written(capsys: pytest.CaptureFixture[str], recorded: Layout):
    page, picture = told(capsys, "report", recorded.directory).splitlines()
    assert Path(page).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert Path(picture).read_bytes().startswith(b"\x89PNG")


def test_the_panels_counts_follow_the_store(recorded: Layout, tmp_path: Path):
    counts = Counts(recorded)
    assert counts() == {"succeeded": 9}
    assert counts() == {"succeeded": 9}
    counts.close()
    young = Counts(Layout(tmp_path))
    assert young() == {}
    young.close()
    with open_store(recorded.store) as store:
        assert len(store.rollouts()) == 9
