"""whippletree/cli/sft.py: from a run's directory to a model, as commands."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import msgspec
import pytest
from recorded_run import write_tokenizer
from sft_parts import recording

from whippletree.cli.main import main
from whippletree.loop.sft.training import SftSummary, read_metrics
from whippletree.ui.sft import SftView


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a real, very small model."""
    from engine_parts import build

    root = tmp_path_factory.mktemp("cli-sft")
    shape = {"vocab_size": 320, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    build(root / "model", "qwen3", 1, **shape)
    write_tokenizer(root / "model")
    with recording(root / "demo") as (recorder, layout):
        services = msgspec.structs.replace(layout.read_services(), model_directory=str(root / "model"))
        layout.write_services(services)
        for number in range(4):
            recorder.rollout(f"r{number}", ["cat amber", f"submit {10 + number}"], task_id=f"t{number}")
        recorder.rollout("bad", ["cat amber"], reward=0.0)
    return root / "demo"


def test_an_export_says_what_it_holds_and_what_it_left_out(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["export", "sft", str(run), "--out", str(tmp_path), "--set", "deduplicate=false"]) == 0
    said = capsys.readouterr().out
    assert "4 of 5 rollouts, 8 of their 8 calls" in said
    assert "8 examples with 48 trained tokens" in said
    assert "left out: 1 rollouts: reward below min_reward" in said
    assert len((tmp_path / "chat.jsonl").read_text().splitlines()) == 8
    assert main(["export", "sft", str(run), "--format", "tokens", "--purpose", "eval"]) == 0
    assert (run / "sft" / "tokens.parquet").is_file()
    assert "its purpose is train" in capsys.readouterr().out
    shutil.rmtree(run / "sft")


def test_a_run_becomes_a_model_and_a_resumed_one_the_same(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    settings = ["--set", "rendering.template=tiny", "--set", "sft.epochs=2", "--set", "sft.batch_tokens=20"]
    target = tmp_path / "out"
    assert main(["sft", str(run), "--run-dir", str(target), *settings]) == 0
    said = capsys.readouterr().out
    summary = msgspec.json.decode((target / "summary.json").read_bytes(), type=SftSummary)
    assert (target / "model" / "model.safetensors").is_file() and summary.model == str(target / "model")
    assert f"update {summary.steps}/{summary.steps} loss" in said and "held out" in said and "reward below min_reward" in said
    assert main(["sft", str(run), "--run-dir", str(target), *settings]) == 2
    assert "holds a fine-tuning" in capsys.readouterr().err
    shutil.rmtree(target / "model")
    assert main(["sft", "--resume", str(target)]) == 0
    assert (target / "model" / "model.safetensors").is_file()
    assert len(read_metrics(target)) == summary.steps + 1
    assert main(["sft", str(run), "--run-dir", str(target), "--overwrite", "--set", "sft.steps=1", *settings]) == 0
    assert len(read_metrics(target)) == 2


def test_where_ctrl_c_is_ignored_it_stays_so(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SftView, "line", lambda _, line: os.kill(os.getpid(), signal.SIGINT))
    settings = ["--set", "rendering.template=tiny", "--set", "sft.steps=2"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert main(["sft", str(run), "--run-dir", str(tmp_path / "out"), *settings]) == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_loses_no_update_and_says_how_to_go_on(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    settings = ["--set", "rendering.template=tiny", "--set", "sft.epochs=4", "--set", "sft.batch_tokens=20"]
    with monkeypatch.context() as patch:
        patch.setattr(SftView, "line", lambda _, line: os.kill(os.getpid(), signal.SIGINT) if line.step == 2 else None)
        assert main(["sft", str(run), "--run-dir", str(tmp_path / "out"), *settings]) == 130
    assert f"stopped (go on with `whippletree sft --resume {tmp_path / 'out'}`)" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out" / "checkpoints").glob("step-*")] == ["step-0002"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert main(["sft", "--resume", str(tmp_path / "out")]) == 0
    assert "update 2/" not in capsys.readouterr().out
    steps = [line.step for line in read_metrics(tmp_path / "out")]
    assert steps == list(range(len(steps))) and len(steps) > 3


def test_a_file_names_data_and_model(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["export", "sft", str(run), "--out", str(tmp_path / "data")]) == 0
    file = tmp_path / "sft.toml"
    file.write_text(
        f'data = ["{tmp_path}/data"]\nmodel = {{ kind = "directory", path = "{run.parent}/model" }}\n'
        f'[sft]\nname = "tuned"\ndirectory = "{tmp_path}"\n[rendering]\ntemplate = "tiny"\n'
    )
    assert main(["sft", str(file)]) == 0
    assert (tmp_path / "tuned" / "model" / "config.json").is_file()
    assert main(["sft", str(file), "--overwrite", "--set", "sft.epoch=2"]) == 2
    assert "did you mean sft.epochs?" in capsys.readouterr().err


def test_exports_are_learned_from_by_a_model_that_is_named_by_its_path(run: Path, tmp_path: Path):
    data = tmp_path / "data"
    assert main(["export", "sft", str(run), "--out", str(data)]) == 0
    settings = ["--set", "rendering.template=tiny", "--set", "sft.steps=1"]
    named = ["--set", f"model.path={run.parent / 'model'}"]
    assert main(["sft", str(data), "--run-dir", str(tmp_path / "named"), *settings, *named]) == 0
    # without a name: the export knows what its run began with
    assert main(["sft", str(data / "chat.jsonl"), "--run-dir", str(tmp_path / "known"), *settings]) == 0


def test_what_cannot_be_done_says_what_to_do(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for arguments, said in (
        (["sft"], "nothing to learn from"),
        (["sft", "--resume", str(tmp_path)], "holds no fine-tuning"),
        (["sft", str(tmp_path), "--run-dir", str(tmp_path / "x")], "holds no chat.jsonl"),
        (["sft", str(run), "--run-dir", str(run)], "holds a run"),
        (["export", "sft", str(tmp_path)], "has no store"),
    ):
        assert main(arguments) == 2, arguments
        assert said in capsys.readouterr().err


def test_grid_and_sft_files_can_be_checked_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    grid = Path(__file__).parents[2] / "examples" / "grid" / "grid.toml"
    tuning = tmp_path / "sft.toml"
    tuning.write_text('data = ["x"]\n')
    for file, part in ((grid, "[[harnesses]]"), (tuning, "[export]")):
        assert main(["config", "check", str(file)]) == 0
        assert main(["config", "show", str(file)]) == 0
        assert part in capsys.readouterr().out
    assert main(["config", "check", str(grid), "--set", "grid.sample=3"]) == 2
    assert "did you mean grid.samples?" in capsys.readouterr().err
    assert main(["config", "check", str(grid), "--set", "harnesses.0.harness.settings.mod=1"]) == 2
    assert "harnesses.0.harness.settings" in capsys.readouterr().err
