"""Collect hooks and artifacts: what comes out of a sandbox, and what does not."""

from __future__ import annotations

import base64
import io
import json
import tarfile

import pytest

from whippletree.tasks import artifacts
from whippletree.tasks.artifacts import Collected, collect, hand_over

TOML = """
artifacts = ["report", {source = "/app/tree", destination = "t", exclude = ["*.pyc"]}, "missing"]
[[verifier.collect]]
command = "echo state > report"
[[verifier.collect]]
command = "echo no >&2; exit 4"
"""


@pytest.fixture
async def world(make_sandbox, make_task):
    task = make_task("#!/bin/sh\n", toml=TOML)
    sandbox = make_sandbox(task.sandbox_spec("collect-1"))
    await sandbox.start()
    yield task, sandbox
    await sandbox.stop()


async def act(sandbox, script: str) -> None:
    done = await sandbox.exec(["/bin/sh", "-c", script], timeout=10.0)
    assert done.exit_code == 0, done.output


async def test_hooks_run_and_listed_paths_come_out(world, tmp_path):
    task, sandbox = world
    await act(sandbox, "mkdir -p tree/deep; printf '\\000\\377' > tree/deep/bytes; chmod +x tree/deep/bytes; touch tree/a.pyc")
    await act(sandbox, 'mkdir -p "$WHIPPLETREE_ROOT/logs/artifacts"; echo log > "$WHIPPLETREE_ROOT/logs/artifacts/l"')
    out = tmp_path / "out"
    manifest = await collect(task, task.steps[0], sandbox, out)
    assert (out / "app/report").read_text() == "state\n"
    assert (out / "t/deep/bytes").read_bytes() == b"\x00\xff" and (out / "t/deep/bytes").stat().st_mode & 0o111
    assert (out / "logs/artifacts/l").read_text() == "log\n"
    assert not (out / "t/a.pyc").exists()
    assert [(hook.exit_code, hook.output) for hook in manifest.hooks] == [(0, ""), (4, "no\n")]
    by_path = {entry.path: entry for entry in manifest.artifacts}
    assert by_path["t"] == Collected(source="/app/tree", path="t", files=1, bytes=2)
    assert by_path["app/missing"].problem == "it is not there"
    assert json.loads((out / "manifest.json").read_text())["hooks"][1]["exit_code"] == 4


async def test_links_and_devices_are_left_out_and_named(world, tmp_path):
    task, sandbox = world
    await act(sandbox, "mkdir tree; ln -s /etc/passwd tree/link; mkfifo tree/pipe; echo x > tree/x; ln tree/x tree/y")
    manifest = await collect(task, task.steps[0], sandbox, tmp_path / "out")
    (tree,) = [entry for entry in manifest.artifacts if entry.path == "t"]
    assert tree.files == 1 and "tree/link" in tree.problem and "tree/pipe" in tree.problem
    found = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not any(path.is_symlink() for path in found) and len(found) == 3  # report, one of x and y, the manifest


async def test_what_is_too_large_is_named_and_stops_nothing(world, tmp_path, monkeypatch):
    monkeypatch.setattr(artifacts, "LIMIT", 30_000)
    task, sandbox = world
    await act(sandbox, "mkdir tree; head -c 60000 /dev/urandom > tree/big")
    manifest = await collect(task, task.steps[0], sandbox, tmp_path / "out")
    problems = {entry.path: entry.problem for entry in manifest.artifacts}
    assert problems == {"app/report": "", "t": "it is more than 30000 bytes", "app/missing": "it is not there"}


@pytest.mark.parametrize("name", ["../evil", "/evil", "tree/../../evil", "other/evil"])
def test_an_archive_cannot_write_elsewhere(tmp_path, name):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    text = base64.b64encode(data.getvalue()).decode()
    entry = artifacts._unpack(Collected(source="/app/tree", path="t"), text, tmp_path / "out")
    assert entry.files == 0 and name in entry.problem
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("text", ["", "!!!", "AAAA", base64.b64encode(b"x" * 600).decode()])
def test_no_archive_is_a_problem_and_not_an_error(tmp_path, text):
    entry = artifacts._unpack(Collected(source="/app/tree", path="t"), text, tmp_path)
    assert entry.files == 0 and (entry.problem or text == "")


async def test_another_sandbox_gets_what_was_collected_at_the_same_paths(world, make_sandbox, tmp_path):
    task, sandbox = world
    await act(sandbox, "mkdir -p tree/deep; echo x > tree/deep/x; echo secret > notes")
    manifest = await collect(task, task.steps[0], sandbox, tmp_path / "out")
    other = make_sandbox(task.sandbox_spec("collect-2"))
    await other.start()
    try:
        await hand_over(manifest, other, tmp_path / "out")
        done = await other.exec(["/bin/sh", "-c", "cat report tree/deep/x; ls"], timeout=10.0)
        assert done.output.split() == ["state", "x", "given", "report", "tree"]
    finally:
        await other.stop()
