"""`whippletree tasks filter`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from whippletree.cli import training
from whippletree.cli.main import main
from whippletree.loop.config import RunConfig
from whippletree.loop.layout import Layout
from whippletree.protocols import AttemptOutcome
from whippletree.store import open_store
from whippletree.types import RolloutSpec, VerifierResult


@pytest.fixture
def tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["tasks", "make", "trail", str(tmp_path / "t"), "--train", "4", "--heldout", "0"]) == 0
    capsys.readouterr()
    return tmp_path / "t" / "train"


def tried(run: Path, name: str, rewards: list[float]) -> None:
    with closing(open_store(run / "store")) as store:
        for number, reward in enumerate(rewards):
            spec = RolloutSpec(
                rollout_id=f"{run.name}-{name}-{number}", group_id=name, source="s", task_id=name, task_path="/t", harness="h"
            )
            store.create_rollouts([spec]).result()
            attempt = store.begin(spec.rollout_id, "w").result()
            result = VerifierResult(reward=reward, scores={"reward": reward})
            assert store.finish(AttemptOutcome(attempt=msgspec.structs.replace(attempt, result=result))).result()


def test_the_rules_alone(tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first = sorted(tasks.iterdir())[0]
    (first / "instruction.md").write_text("")
    assert main(["tasks", "filter", str(tasks), "--to", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"3 kept in {tmp_path / 'out'}; 1 dropped\n  dropped 1: empty statement\n"


def test_results_of_several_runs_add_up(tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    one, two, three, four = sorted(path.name for path in tasks.iterdir())
    tried(tmp_path / "a", one, [1.0, 0.0])
    tried(tmp_path / "b", one, [0.0, 0.0, 1.0])
    tried(tmp_path / "b", two, [1.0] * 4)
    tried(tmp_path / "b", three, [0.0] * 3)
    words = ["tasks", "filter", str(tasks), "--to", str(tmp_path / "out"), "--never-share", "1"]
    runs = ["--results", str(tmp_path / "a"), "--results", str(tmp_path / "b")]
    assert main([*words, *runs]) == 1
    out = capsys.readouterr().out
    assert f"undecided 2: fewer than 4 judged tries, such as {three}" in out and "kept 1: solved in some tries" in out
    tried(tmp_path / "c", three, [0.0])
    tried(tmp_path / "c", four, [0.0] * 4)
    assert main([*words, *runs, "--results", str(tmp_path / "c"), "--json"]) == 0
    tally = json.loads(capsys.readouterr().out)["tally"]
    assert tally == {
        "kept": 3,
        "dropped": {"solved in every try": 1},
        "kept_because": {"never solved, drawn": 2, "solved in some tries": 1},
    }


def test_what_is_no_run_is_said(tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["tasks", "filter", str(tasks), "--to", str(tmp_path / "out"), "--results", str(tmp_path)]) == 2
    assert "holds no record of a run" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_measuring_that_is_stopped_goes_on_by_the_same_command(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    ran = []

    def stopped(config: RunConfig, layout: Layout, _: object) -> int:
        ran.append((layout.directory, config.loop.steps, config.loop.eval_samples))
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "_run_in", stopped)
    demo = Path(__file__).parents[2] / "examples" / "demo.toml"
    words = ["tasks", "filter", str(tasks), "--to", str(tmp_path / "out"), "--measure", str(demo), "--tries", "3"]
    assert main(words) == main(words) == 130
    assert ran == [(tmp_path / "out" / ".measuring" / "run", 0, 3)] * 2
    assert capsys.readouterr().err == "whippletree tasks filter: stopped (go on with the same command)\n" * 2
    changed = tmp_path / "changed.toml"
    changed.write_text(demo.read_text().replace("[sampling]", "[sampling]\ntop_p = 0.5"))
    assert main([*words[:6], str(changed), *words[7:]]) == main([*words[:-1], "4"]) == 2
    assert capsys.readouterr().err.count("is not what was measured in") == len(ran) == 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_measuring_runs_the_model_and_goes_on(tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first = sorted(tasks.iterdir())[0]
    (first / "instruction.md").write_text("")
    demo = Path(__file__).parents[2] / "examples" / "demo.toml"
    words = ["tasks", "filter", str(tasks), "--to", str(tmp_path / "out"), "--measure", str(demo), "--tries", "2"]
    shares = ["--never-share", "1", "--always-share", "1"]
    assert main([*words, *shares]) == 0
    capsys.readouterr()
    with closing(open_store(tmp_path / "out" / ".measuring" / "run" / "store")) as store:
        tried = [rollout.spec.task_id for rollout in store.rollouts()]
    assert len(tried) == 6 and first.name not in tried
    assert main([*words, *shares, "--json"]) == 0  # nothing is left to run
    tally = json.loads(capsys.readouterr().out)["tally"]
    assert tally["kept"] == 3 and tally["dropped"] == {"empty statement": 1}
