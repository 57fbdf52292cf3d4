"""Rows of a data set on disk: .jsonl, .json (a list), .parquet, .arrow; a file, or a directory with such files.

Invariants (tests/tasks/test_importing_rows.py): each format gives the same rows, in the order of file names and of the files; a
line that is no object is an error that names file and line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from whippletree.errors import ConfigurationError, TaskError, words_of

Row = dict[str, Any]
ENDINGS = (".jsonl", ".json", ".parquet", ".arrow")
BATCH = 256  # rows


def data_files(source: Path) -> list[Path]:
    """The files of a data set, sorted. Raises ConfigurationError where there are none."""
    if source.is_file():
        found = [source]
    else:
        found = sorted(path for path in source.rglob("*") if path.suffix in ENDINGS and path.is_file())
        # beside the arrow files of `datasets` lie its own notes
        found = [path for path in found if path.name not in ("dataset_info.json", "state.json", "dataset_dict.json")]
    if not found:
        raise ConfigurationError(f"no data in {source}", f"give a file or directory with {', '.join(ENDINGS)}")
    return found


def read_rows(source: Path) -> Iterator[Row]:
    """All rows. Raises ConfigurationError, TaskError for what cannot be read."""
    for path in data_files(source):
        match path.suffix:
            case ".jsonl":
                yield from _lines(path)
            case ".json":
                yield from _decode(path.read_bytes(), list[Row], str(path))
            case ".parquet" | ".arrow":
                yield from _columns(path)
            case other:
                cause = f"{path}: rows are not read from files that end in {other}" if other else f"{path} has no ending"
                raise ConfigurationError(cause, f"known: {', '.join(ENDINGS)}")


def _lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _decode(line, Row, f"{path}:{number}")


def _decode(data: bytes, kind: Any, where: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TaskError(
            f"{where}: not a row: {error}", "one JSON object per line (.jsonl), or a list of them (.json)"
        ) from error


def _columns(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow import ipc, parquet
    except ImportError as error:
        raise ConfigurationError(f"{path} needs pyarrow", "pip install 'whippletree[datasets]'") from error
    try:
        if path.suffix == ".parquet":
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(BATCH):
                    yield from batch.to_pylist()
            return
        with pyarrow.memory_map(str(path)) as mapped:
            for batch in _batches(ipc, pyarrow, mapped):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise TaskError(f"{path} cannot be read: {words_of(error)}", "is it whole?") from error


def _batches(ipc: Any, pyarrow: Any, mapped: Any) -> Iterator[Any]:
    """Batches of an arrow file, in either of its two forms."""
    try:
        reader = ipc.open_file(mapped)
    except pyarrow.ArrowInvalid:
        mapped.seek(0)
        yield from ipc.open_stream(mapped)
        return
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)
