"""kill -9 of every process of a run, and of all of them at once: the run finishes and no rollout is trained twice."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import demo_parts as parts
import pytest

pytestmark = [pytest.mark.chaos, pytest.mark.live, pytest.mark.timeout(1200)]

STEPS = 8
SETTINGS = (f"loop.steps={STEPS}", *parts.SMALL)


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts runs that do not outlive a test that failed."""
    processes: list[subprocess.Popen[str]] = []

    def start(directory: Path, *more: str) -> subprocess.Popen[str]:
        processes.append(parts.start(directory, *SETTINGS, *more))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(90)


def children(pid: int) -> list[int]:
    """Child processes; processes come and go while this looks."""
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(text) for text in (task / "children").read_text().split()]
    except OSError:
        pass
    return found


def descendants(pid: int) -> list[int]:
    found = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def test_each_process_may_be_killed_in_mid_run(tmp_path: Path, started: Callable[..., subprocess.Popen[str]]):
    directory = tmp_path / "run"
    process = started(directory)
    for number, name in enumerate(("engine", "gateway", "pool_host", "learner", "controller"), start=1):
        parts.wait_for(lambda number=number: parts.updates(directory) >= number, process, directory)
        own = set(descendants(process.pid))
        fragment = "pool_host" if name == "pool_host" else f"whippletree.cli {name} "
        victims = [pid for pid in parts.pids(fragment, directory) if pid in own]
        assert victims, f"no {name} process found"
        os.kill(victims[0], signal.SIGKILL)
    summary = parts.finish(process, directory)
    assert summary["complete"]
    assert summary["steps"] == STEPS
    assert summary["failed_rollouts"] == 0
    assert summary["logprob_max_abs_diff"] <= 1e-4
    parts.assert_trained_once(directory, STEPS)


@pytest.mark.parametrize("kind", ["synchronous", "collocated", "asynchronous"])
def test_a_killed_run_leaves_nothing_and_resumes(tmp_path: Path, started: Callable[..., subprocess.Popen[str]], kind: str):
    directory = tmp_path / "run"
    process = started(directory, f"loop.kind={kind}")
    parts.wait_for(lambda: parts.updates(directory) >= 3, process, directory)
    own = descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while (left := [pid for pid in own if Path(f"/proc/{pid}/ns").exists() and alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
    summary = parts.finish(parts.start(directory, resume=True), directory)
    assert summary["complete"]
    parts.assert_trained_once(directory, STEPS)


def test_ctrl_c_stops_cleanly_and_the_run_resumes(tmp_path: Path, started: Callable[..., subprocess.Popen[str]]):
    directory = tmp_path / "run"
    process = started(directory)
    parts.wait_for(lambda: parts.updates(directory) >= 2, process, directory)
    own = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(90) == 130, parts.output(directory)
    assert not [pid for pid in own if alive(pid)]
    assert list((directory / "checkpoints").glob("step-*/model.safetensors"))
    summary = parts.finish(parts.start(directory, resume=True), directory)
    assert summary["complete"]
    parts.assert_trained_once(directory, STEPS)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
