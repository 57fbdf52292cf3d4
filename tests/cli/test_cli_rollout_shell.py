"""`whippletree rollouts shell`: looking into the machine of an attempt afterwards."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "control"))  # control_world, harness_parts

from control_world import World, write_task

from whippletree import sandboxes
from whippletree.cli.main import main
from whippletree.sandboxes import SandboxConfig

CRIU = os.environ.get("WHIPPLETREE_CRIU", "")
SUPPORT = sandboxes.probe(
    SandboxConfig(kind="runc", root=str(Path(tempfile.gettempdir()) / f"whippletree-{os.geteuid()}"), criu=CRIU)
)
needs_criu = pytest.mark.skipif(
    bool(SUPPORT.checkpoint), reason=f"no checkpoints here (WHIPPLETREE_CRIU names a criu): {SUPPORT.checkpoint}"
)
BEATS = 'setsid -f sh -c "while :; do date +%s%N > next; mv next beat; sleep 0.02; done" >/dev/null 2>&1\n'
RUN_FILE = """
[[sources]]
name = "tests"
tasks = {{kind = "trail"}}

[sandbox]
kind = "process"
root = "{root}"
criu = "{criu}"
"""


class Run:
    """A run directory whose rollouts have ended; its sandboxes go below `root`."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.directory = directory
        self.world = World(directory, kind)
        self.world.sandbox = msgspec.structs.replace(self.world.sandbox, criu=CRIU)
        self.root = Path(self.world.sandbox.root)
        (directory / "config.toml").write_text(RUN_FILE.format(root=self.root, criu=CRIU))
        self.bad, self.good = asyncio.run(self._attempts())

    async def _attempts(self) -> tuple[str, str]:
        world, tasks = self.world, self.directory.parent
        async with world.serving():
            (bad,) = world.add(1, write_task(tasks / "bad"), max_attempts=2)
            spec = world.spec(
                launch="process",
                snapshots="failed",
                settings={"shell": f"{BEATS}echo mine > left; mkdir d; ls > d/seen; exit 3"},
            )
            async with world.controlling(spec):
                await world.finished([bad])
            (good,) = world.add(1, write_task(tasks / "good"))
            async with world.controlling(world.spec(launch="process", settings={"shell": 'python3 -c "$ASK"'})):
                await world.finished([good])
        return bad, good


@pytest.fixture(params=["process", "bubblewrap"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    if request.param == "bubblewrap" and SUPPORT.bubblewrap:
        pytest.skip(f"bubblewrap does not work here: {SUPPORT.bubblewrap}")
    made = Run(tmp_path / "run", request.param)
    yield made
    made.world.close()


@pytest.fixture
def one_run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path / "run", "process")
    yield made
    made.world.close()


def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Run, lines: str, *words: str) -> str:
    """What the shell prints for these lines."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert main(["rollouts", "shell", str(run.directory), run.bad, *words]) == 0
    return capsys.readouterr().out


def test_the_machine_is_as_the_agent_left_it_and_stays_so(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = typed(monkeypatch, capsys, run, "cat left\ncd d\nrm seen; ls; false\ncat ../left\nexit\necho never\n")
    assert f"{run.bad}, attempt 2, as it was after seal" in out and "harness: " in out
    assert "no processes: " in out and f"--- {run.world.sandbox.kind}: " in out
    assert out.count("mine\n") == 2 and "[status 1]" in out and "never" not in out
    assert "/app $ " in out
    again = typed(monkeypatch, capsys, run, "ls d\n")  # the end of the input ends it too
    assert "seen\n" in again
    assert list(run.root.iterdir()) == []


def test_an_attempt_is_chosen_by_its_number(
    one_run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{one_run.bad}, attempt 1, as" in typed(monkeypatch, capsys, one_run, "", "--attempt", "1")
    run_dir = str(one_run.directory)
    first, second = one_run.world.store.attempts(one_run.bad)
    assert first.snapshot is not None and second.snapshot is not None
    shutil.rmtree(one_run.directory / second.snapshot.directory)
    for words, cause in (
        ([one_run.bad], "the snapshot of attempt 2 of 'tests-bad-0' was removed since"),
        ([one_run.bad, "--attempt", "3"], "rollout 'tests-bad-0' has no attempt 3"),
        ([one_run.good], "no attempt of 'tests-good-0' has a snapshot"),
        ([one_run.good, "--attempt", "1"], "attempt 1 of 'tests-good-0' has no snapshot"),
        (["nobody"], "'nobody' is unknown"),
    ):
        assert main(["rollouts", "shell", run_dir, *words]) == 2
        assert cause in capsys.readouterr().err
    assert list(one_run.root.iterdir()) == []
    assert main(["rollouts", "show", run_dir, one_run.bad]) == 0
    assert "snapshot after seal: files (process sandboxes cannot be checkpointed)" in capsys.readouterr().out


@needs_criu
def test_processes_go_on_unless_only_the_files_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path / "run", "runc")
    beats = "a=$(cat beat); sleep 0.5; [ $a != $(cat beat) ] && echo beats || echo stands\n"
    try:
        out = typed(monkeypatch, capsys, run, beats)
        assert "--- its processes go on ---" in out and "\nbeats\n" in out.replace("/app $ ", "\n")
        out = typed(monkeypatch, capsys, run, beats, "--files")
        assert "no processes: left out" in out and "stands\n" in out
        out = typed(monkeypatch, capsys, run, "id -u\n", "--user", "root")
        assert "/app $ 0\n" in out
        assert list(run.root.iterdir()) == []
    finally:
        run.world.close()
