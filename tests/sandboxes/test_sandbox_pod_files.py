"""Archives that go into pods and come out of them."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from whippletree.errors import SandboxError
from whippletree.sandboxes.pods import files as pod_files
from whippletree.sandboxes.pods.files import Incoming, pack


def archive(fill: Callable[[tarfile.TarFile], None]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.GNU_FORMAT) as tar:
        fill(tar)
    return whole.getvalue()


def entry(tar: tarfile.TarFile, name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    tar.addfile(info, io.BytesIO(data))


def unpacked(data: bytes, target: Path, limit: int = 1000) -> pod_files.Found:
    with Incoming("/app/a", limit) as incoming:
        for start in range(0, len(data), 700):
            incoming.take(data[start : start + 700])
        return incoming.unpack(target)


def test_files_and_directories_come_out_with_modes_of_ours(tmp_path: Path) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        entry(tar, "a", kind=tarfile.DIRTYPE, mode=0o700)
        entry(tar, "a/x", b"x", mode=0o4711, uid=4321)
        entry(tar, "a/f", b"ff", mode=0)
        entry(tar, "a/same", kind=tarfile.LNKTYPE, linkname="a/f")
        entry(tar, "a/" + "long" * 60, b"l")

    found = unpacked(archive(fill), tmp_path)
    assert (found.files, found.bytes, found.skipped) == (4, 6, [])
    assert (tmp_path / "a" / "x").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "a" / "f").stat().st_mode & 0o7777 == 0o644
    assert (tmp_path / "a" / "same").read_bytes() == b"ff"
    assert (tmp_path / "a" / "x").stat().st_uid == os.geteuid()


@pytest.mark.parametrize("name", ["../out", "/abs", "a/../../out", "a//b", "./a", "a/.."])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()

    def fill(tar: tarfile.TarFile) -> None:
        entry(tar, "a", kind=tarfile.DIRTYPE, mode=0o755)
        entry(tar, name, b"x")

    with pytest.raises(SandboxError):
        unpacked(archive(fill), tmp_path / "in")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    secret = tmp_path / "secret"
    secret.write_text("secret")

    def fill(tar: tarfile.TarFile) -> None:
        entry(tar, "a", kind=tarfile.SYMTYPE, linkname=str(tmp_path))
        entry(tar, "pipe", kind=tarfile.FIFOTYPE)
        entry(tar, "disk", kind=tarfile.BLKTYPE, devmajor=8)
        entry(tar, "hard", kind=tarfile.LNKTYPE, linkname="../secret")
        entry(tar, "hard2", kind=tarfile.LNKTYPE, linkname=str(secret))

    found = unpacked(archive(fill), tmp_path / "in")
    assert found.skipped == ["a", "disk", "hard", "hard2", "pipe"] and found.files == 0
    assert list((tmp_path / "in").iterdir()) == []

    def through(tar: tarfile.TarFile) -> None:
        entry(tar, "a", kind=tarfile.SYMTYPE, linkname=str(tmp_path))
        entry(tar, "a/out", b"x")

    with pytest.raises(SandboxError):
        unpacked(archive(through), tmp_path / "in")
    assert not (tmp_path / "out").exists()


def test_it_is_held_to_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def large(tar: tarfile.TarFile) -> None:
        entry(tar, "a", b"x" * 600)
        entry(tar, "b", b"x" * 600)

    with pytest.raises(SandboxError, match="more than 1000 bytes"):
        unpacked(archive(large), tmp_path)
    with pytest.raises(SandboxError, match="deeper than"):
        unpacked(archive(lambda tar: entry(tar, "/".join("d" * 101), b"")), tmp_path)
    with Incoming("/app/a", 10) as incoming, pytest.raises(SandboxError, match="more than 10 bytes"):
        for _ in range(200):
            incoming.take(b"\0" * (1 << 20))
    with pytest.raises(SandboxError, match="cannot be read"):
        unpacked(b"no archive" * 100, tmp_path)
    with pytest.raises(SandboxError):
        unpacked(archive(lambda tar: entry(tar, "cut", b"x" * 900))[:700], tmp_path)


def test_what_goes_in_is_files_directories_and_links(tmp_path: Path) -> None:
    source = tmp_path / "s"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "deep" / "f").write_text("f")
    (source / "deep" / "f").chmod(0o4755)
    (source / "link").symlink_to("/etc/passwd")
    packed = pack(source, "/app/x/")
    with tarfile.open(fileobj=packed.archive) as tar:
        members = {member.name: member for member in tar}
    assert sorted(members) == ["app/x/deep/f", "app/x/link"]
    assert members["app/x/deep/f"].mode == 0o755 and members["app/x/link"].linkname == "/etc/passwd"
    assert packed.directories == ["/app/x", "/app/x/deep", "/app/x/deep/empty"]
    assert packed.files == ["/app/x/deep/f", "/app/x/link"]
    packed.close()
    os.mkfifo(source / "pipe")
    with pytest.raises(SandboxError, match="only files"):
        pack(source, "/app")


def test_what_cannot_go_in_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    for source, target in ((tmp_path / "f", "/"), (tmp_path / "f", "app/f"), (tmp_path / "f", "/app/../f")):
        with pytest.raises(SandboxError):
            pack(source, target)
    with pytest.raises(SandboxError, match="No such file"):
        pack(tmp_path / "none", "/app/f")
