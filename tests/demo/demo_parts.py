"""Starting, watching and judging reduced runs of the demo."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from whippletree.loop.layout import Layout
from whippletree.loop.metrics import Log
from whippletree.store import open_store

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples/demo.toml"
SMALL = (
    "loop.groups_per_step=4",
    "loop.group_size=4",
    "loop.groups_in_flight=8",
    "loop.eval_every=0",
    "loop.eval_samples=1",
    "sources.0.tasks.family={train = 24, heldout = 12}",
    "control.concurrency=16",
)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "whippletree.cli", *arguments]


def start(directory: Path, *settings: str, resume: bool = False) -> subprocess.Popen[str]:
    """A run in the background; its output goes beside the run directory."""
    overrides = [f"--set={item}" for item in settings]
    what = ["--resume", str(directory)] if resume else [str(DEMO), "--run-dir", str(directory), *overrides]
    output = directory.with_suffix(".out").open("a")
    return subprocess.Popen(command("train", "--plain", *what), stdout=output, stderr=output, text=True, start_new_session=True)


def wait_for(condition: Any, process: subprocess.Popen[str], directory: Path, seconds: float = 600.0) -> None:
    """Poll until the condition holds; fails with the run's output when the run ends or the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"run ended {process.poll()} or too slow:\n{output(directory)}")
        time.sleep(0.1)


def finish(process: subprocess.Popen[str], directory: Path, seconds: float = 900.0) -> dict[str, Any]:
    """Wait for a run's good end; returns its summary."""
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        raise AssertionError(f"run not finished after {seconds} s:\n{output(directory)}") from None
    assert status == 0, output(directory)
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return summary


def output(directory: Path) -> str:
    logs = {path.name: path.read_text(errors="replace")[-2000:] for path in (directory / "logs").glob("*.log")}
    text = "\n".join(f"--- {name}\n{log}" for name, log in sorted(logs.items()))
    return directory.with_suffix(".out").read_text(errors="replace")[-4000:] + "\n" + text


def updates(directory: Path) -> int:
    return len(Log(directory).steps())


def pids(fragment: str, directory: Path) -> list[int]:
    """Processes of this run whose command line has the fragment. One that they have just forked has it too, until it begins
    its own program: children of those that were found are left out."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if fragment in text and (str(directory) in text or fragment == "pool_host"):
                found[int(entry.name)] = parent
    return [pid for pid, parent in found.items() if parent not in found]


def assert_trained_once(directory: Path, steps: int) -> None:
    """Every rollout is in at most one step, every step is committed, every training rollout of a step is terminal."""
    store = open_store(Layout(directory).store)
    try:
        records = store.steps()
        assert [record.step for record in records] == list(range(steps))
        assert all(record.committed for record in records)
        times = Counter(name for record in records for name in record.rollout_ids)
        assert max(times.values()) == 1
        assert all(store.rollout(name).terminal for name in times)
        assert [line.step for line in Log(directory).steps()] == list(range(steps))
    finally:
        store.close()
