"""whippletree/files.py"""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from whippletree.files import write_atomically, write_json
from whippletree.types import VersionSpan


def test_a_reader_never_sees_a_part(tmp_path: Path):
    path = tmp_path / "deep" / "file"
    contents = [bytes([65 + n]) * 200_000 for n in range(4)]
    write_atomically(path, contents[0])
    done = threading.Event()
    seen = set()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for content in contents * 5:
        write_atomically(path, content)
    done.set()
    reader.join()
    assert seen <= set(contents)
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_content_alone(tmp_path: Path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_structs_are_readable_json(tmp_path: Path):
    span = VersionSpan(start=3, policy_version=7)
    write_json(tmp_path / "span.json", span)
    assert msgspec.json.decode((tmp_path / "span.json").read_bytes(), type=VersionSpan) == span
