"""whippletree/loop/sft/exporting.py: files of examples and their account."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from sft_parts import SOLVED, recording

from whippletree.errors import ConfigurationError
from whippletree.loop.sft.config import ExportConfig
from whippletree.loop.sft.exporting import ExportAccount, export, read_chat, read_tokens, run_layouts

LONG = ["cat amber", "cat birch", "cat cedar", "submit 17"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rollouts of one harness that did the same, one of another that did more, one that failed."""
    directory = tmp_path_factory.mktemp("runs") / "demo"
    with recording(directory) as (recorder, _):
        for name in ("a", "b", "c"):
            recorder.rollout(name, SOLVED, task_id="one")
        recorder.rollout("d", LONG, harness="other", task_id="two")
        recorder.rollout("e", LONG, reward=0.0)
    return directory


@pytest.mark.parametrize("form", ["chat", "tokens"])
def test_what_is_made_is_written_or_counted(run: Path, tmp_path: Path, form: str):
    account = export([run], tmp_path, ExportConfig(format=form))
    made = {"chat": 3 * 2 + 4, "tokens": 4}[form]
    assert account.examples + account.duplicates + account.balanced_away == made
    assert (account.rollouts, account.kept_rollouts, account.dropped_rollouts) == (5, 4, {"reward below min_reward": 1})
    assert account.duplicates == {"chat": 5, "tokens": 2}[form]  # the first turn of "other" is the same as well
    assert sum(account.tokens_by_harness.values()) == account.tokens
    assert msgspec.json.decode((tmp_path / "export.json").read_bytes(), type=ExportAccount) == account
    every = export([run], tmp_path / "all", ExportConfig(format=form, deduplicate=False))
    assert (every.examples, every.duplicates) == (made, 0)


@pytest.mark.parametrize("form", ["chat", "tokens"])
def test_files_are_the_same_each_time_and_read_back(run: Path, tmp_path: Path, form: str):
    config = ExportConfig(format=form, deduplicate=False)
    files = [tmp_path / str(number) / export([run], tmp_path / str(number), config).file for number in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()
    found = read_chat(files[0]) if form == "chat" else read_tokens(files[0])
    assert len(found) == (10 if form == "chat" else 4)
    if form == "tokens":
        assert found[0].trained.dtype == np.bool_ and found[0].input_ids.dtype == np.int32
        assert int(found[-1].trained.sum()) == 24 == found[-1].origin.tokens
        assert found[-1].origin.harness == "other"


def test_harnesses_are_balanced_by_trained_tokens(run: Path, tmp_path: Path):
    config = ExportConfig(deduplicate=False, balance=True)
    account = export([run], tmp_path, config)
    assert account.tokens_by_harness == {"h": 24, "other": 24}
    assert account.balanced_away == 2
    less = export([run], tmp_path, msgspec.structs.replace(config, tokens_per_harness=12))
    assert less.tokens_by_harness == {"h": 12, "other": 12}


def test_a_harness_of_which_balancing_leaves_nothing_is_told(tmp_path: Path):
    with recording(tmp_path / "demo") as (recorder, _):
        recorder.rollout("a", LONG, harness="long")
        recorder.rollout("b", SOLVED, harness="short")
    account = export([tmp_path / "demo"], tmp_path / "out", ExportConfig(format="tokens", balance=True))
    assert account.tokens_by_harness == {"long": 0, "short": 12} and account.examples_by_harness == {"long": 0, "short": 1}


def test_several_runs_are_one_export_and_a_grid_stands_for_its_models(run: Path, tmp_path: Path):
    grid = tmp_path / "grid"
    for model in ("one", "two"):
        with recording(grid / "models" / model) as (recorder, _):
            recorder.rollout("a", SOLVED, text=model)
    (grid / "grid.toml").write_text("")
    assert [layout.directory.name for layout in run_layouts([run, grid])] == ["demo", "one", "two"]
    account = export([run, grid], tmp_path / "out", ExportConfig())
    assert {example.run for example in read_chat(tmp_path / "out" / "chat.jsonl")} == {"demo", "one", "two"}
    assert account.kept_rollouts == 6
    with pytest.raises(ConfigurationError, match="has no store"):
        export([tmp_path / "nothing"], tmp_path / "out", ExportConfig())


def test_a_line_of_another_form_is_named(run: Path, tmp_path: Path):
    export([run], tmp_path, ExportConfig())
    path = tmp_path / "chat.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged, said in (
        (b"{}\n", ":2: "),
        (lines[1].replace(b'"target":4', b'"target":3'), "target 3"),
        (lines[1].replace(b'"target":4', b'"target":9'), "target 9"),
        (lines[1].replace(b'"role":"user"', b'"role":"developer"'), ":2: a message of role 'developer'"),
    ):
        path.write_bytes(b"".join([lines[0], damaged, *lines[2:]]))
        with pytest.raises(ConfigurationError, match=said):
            read_chat(path)


def test_a_row_of_another_form_is_named(tmp_path: Path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "tokens.parquet"
    path.write_bytes(b"nothing")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_tokens(path)
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": [[1, 2]]}), path)
    with pytest.raises(ConfigurationError, match="row 0"):
        read_tokens(path)
    origin = {"run": "r", "rollout_id": "a", "source": "s", "task_id": "t", "harness": "h", "reward": 1.0, "tokens": 1}
    for mask in ([True, True], [False], [False, False]):
        rows = [origin | {"sample_id": "a.0", "input_ids": [1, 2], "loss_mask": mask}]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        with pytest.raises(ConfigurationError, match="row 0: 2 ids"):
            read_tokens(path)
