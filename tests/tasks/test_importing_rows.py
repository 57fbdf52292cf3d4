"""whippletree/tasks/importing/rows.py"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whippletree.errors import ConfigurationError, TaskError
from whippletree.tasks.importing.rows import BATCH, read_rows

ROWS = [{"id": f"r{number}", "n": number, "names": ["a", "b"], "text": "x\ny \u00e9"} for number in range(BATCH + 5)]


def write(path: Path) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    elif path.suffix == ".json":
        path.write_text(json.dumps(ROWS))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import ipc, parquet

        table = pyarrow.Table.from_pylist(ROWS)
        if path.suffix == ".parquet":
            parquet.write_table(table, path)
        else:
            new = ipc.new_stream if "stream" in path.name else ipc.new_file
            with pyarrow.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
                writer.write_table(table)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet", "stream.arrow", "file.arrow"])
def test_each_format_gives_the_same_rows(name: str, tmp_path: Path):
    assert list(read_rows(write(tmp_path / name))) == ROWS


def test_a_directory_is_its_files_in_order(tmp_path: Path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.jsonl").write_text('{"n": 2}\n')
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "README.md").write_text("no data")
    assert list(read_rows(tmp_path)) == [{"n": 1}, {"n": 2}]


def test_what_datasets_writes_is_read(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS[:3]).save_to_disk(str(tmp_path / "d"))
    assert list(read_rows(tmp_path / "d")) == ROWS[:3]


def test_what_cannot_be_read_is_named(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n[1]\n')
    with pytest.raises(TaskError, match=r"a.jsonl:2: not a row"):
        list(read_rows(tmp_path))
    for name in ("a.parquet", "a.arrow"):
        pytest.importorskip("pyarrow")
        (tmp_path / name).write_bytes(b"no")
        with pytest.raises(TaskError, match="cannot be read"):
            list(read_rows(tmp_path / name))
    (tmp_path / "a.csv").write_text("a\n")
    with pytest.raises(ConfigurationError, match=r"rows are not read from files that end in \.csv"):
        list(read_rows(tmp_path / "a.csv"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="no data in"):
        list(read_rows(tmp_path / "empty"))
