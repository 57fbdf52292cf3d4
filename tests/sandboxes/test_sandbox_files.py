"""Copies in and reads out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whippletree.sandboxes import files

ME = (os.geteuid(), os.getegid())


def put(base: Path, source: Path, target: str) -> None:
    descriptor = os.open(source, os.O_RDONLY)
    try:
        files.put(str(base), descriptor, target, ME)
    finally:
        os.close(descriptor)


def test_a_tree_is_copied_with_modes_and_links(tmp_path: Path) -> None:
    source, base = tmp_path / "s", tmp_path / "b"
    (source / "d" / "e").mkdir(parents=True)
    base.mkdir()
    (source / "d" / "run").write_text("x" * 3_000_000)
    (source / "d" / "run").chmod(0o6777)
    (source / "l").symlink_to("/etc/passwd")
    put(base, source, "/a/b")
    assert (base / "a/b/d/run").stat().st_size == 3_000_000
    assert (base / "a/b/d/run").stat().st_mode & 0o7777 == 0o755
    assert (base / "a/b/l").readlink() == Path("/etc/passwd")
    put(base, source / "d", "/a/b/d2")
    assert (base / "a/b/d2/e").is_dir()


def test_a_copy_merges_directories_and_replaces_no_file(tmp_path: Path) -> None:
    source, base = tmp_path / "s", tmp_path / "b"
    source.mkdir(), base.mkdir()
    (source / "f").write_text("new")
    (base / "g").write_text("old")
    put(base, source, "/")
    assert (base / "f").read_text() == "new" and (base / "g").read_text() == "old"
    with pytest.raises(FileExistsError):
        put(base, source, "/")
    (base / "h").symlink_to("/tmp/elsewhere")
    with pytest.raises(FileExistsError):
        put(base, source / "f", "/h")


def test_no_component_that_is_a_link_is_followed(tmp_path: Path) -> None:
    outside, base = tmp_path / "o", tmp_path / "b"
    outside.mkdir(), base.mkdir()
    (outside / "secret").write_text("s")
    (base / "door").symlink_to(outside)
    (base / "direct").symlink_to(outside / "secret")
    for path in ("/door/secret", "/direct"):
        with pytest.raises(OSError):
            files.read(str(base), path, 10)
    with pytest.raises(OSError):
        put(base, outside / "secret", "/door/x")
    with pytest.raises(OSError):
        put(base, outside, "/door/deep/er")
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_only_regular_files_are_read_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "f").write_bytes(b"12345")
    assert files.read(str(tmp_path), "/f", 3) == b"123"
    assert files.read(str(tmp_path), "/none", 3) is None
    assert files.read(str(tmp_path), "/none/f", 3) is None
    with pytest.raises(ValueError, match="not a regular file"):
        files.read(str(tmp_path), "/pipe", 3)
    with pytest.raises(OSError):
        files.read(str(tmp_path), "/f/g", 3)


def test_special_files_are_not_copied(tmp_path: Path) -> None:
    source, base = tmp_path / "s", tmp_path / "b"
    source.mkdir(), base.mkdir()
    os.mkfifo(source / "pipe")
    with pytest.raises(ValueError, match="only files"):
        put(base, source, "/x")


@pytest.mark.parametrize("path", ["relative", "/a/../b", "..", ""])
def test_paths_are_absolute_and_do_not_go_up(path: str) -> None:
    with pytest.raises(ValueError, match="not an absolute path"):
        files.parts_of(path)
