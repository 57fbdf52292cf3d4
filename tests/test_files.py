"""whippletree/files.py"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import msgspec
import pytest

from whippletree.errors import ConfigurationError
from whippletree.files import locked, write_atomically, write_json
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
    try:
        until = time.monotonic() + 60
        while len(seen) < len(contents) and time.monotonic() < until:  # so that it reads while this writes
            for content in contents:
                write_atomically(path, content)
    finally:
        done.set()
        reader.join()
    assert seen == set(contents)
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


def test_a_lock_is_held_by_one_and_waited_for(tmp_path: Path):
    path, refused = tmp_path / "deep" / "lock", ConfigurationError("taken", "wait")
    with locked(path, refused), pytest.raises(ConfigurationError, match="taken"), locked(path, refused):
        raise AssertionError("held twice")
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(path, refused):
            holding.set()
            release.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert holding.wait(60)
    threading.Timer(0.1, release.set).start()
    with locked(path, refused, seconds=60):
        assert release.is_set()
    other.join()


def test_whoever_looks_at_a_lock_is_waited_for(tmp_path: Path):
    path, refused = tmp_path / "lock", ConfigurationError("taken", "wait")
    looking = path.open("wb")
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.3, looking.close).start()
    with locked(path, refused):
        assert looking.closed


def test_a_lock_is_free_at_its_end_whoever_has_the_file_open_too(tmp_path: Path):
    """As a child has it that is forked meanwhile, until it runs another program."""
    path, refused = tmp_path / "lock", ConfigurationError("taken", "wait")
    with locked(path, refused):
        (held,) = (int(link.name) for link in Path("/proc/self/fd").iterdir() if link.resolve() == path)
        too = os.dup(held)
    with locked(path, refused):
        os.close(too)
