"""The examples at toy size: their files as they are, with few steps of few rollouts, through real harnesses in sandboxes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import demo_parts as parts
import pytest

from whippletree.loop.layout import Layout
from whippletree.loop.metrics import Log
from whippletree.loop.processes import free_ports
from whippletree.store import open_store
from whippletree.types import Rollout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SMALL = (
    "loop.steps=2",
    "loop.group_size=2",
    "loop.groups_in_flight=4",
    "loop.eval_every=0",
    "loop.eval_samples=1",
    "control.concurrency=8",
    "control.pool.hosts=1",
    "control.pool.ready_seconds=280",  # a busy machine takes minutes to import a harness
    "engine.slots=8",
)


def train(directory: Path, run_file: str, *settings: str) -> str:
    """A whole run in the repository's folder; its output. Fails with its logs."""
    overrides = [f"--set={item}" for item in (*SMALL, *settings)]
    command = parts.command("train", "--plain", run_file, "--run-dir", str(directory), *overrides)
    done = subprocess.run(command, cwd=parts.ROOT, capture_output=True, text=True, timeout=800, check=False)
    directory.with_suffix(".out").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, parts.output(directory)
    return done.stdout


def rollouts(directory: Path) -> list[Rollout]:
    with open_store(Layout(directory).store) as store:
        return store.rollouts()


def test_several_harnesses_and_one_differ_in_shares_alone(tmp_path: Path):
    toy = ["model.tiny.warmup.steps=60", "model.tiny.family.heldout=2", "loop.groups_per_step=3"]
    toy += [f"sources.{number}.tasks.family.heldout=2" for number in range(3)]
    names = ("mini-tool", "mini-text", "whitebox")
    for run, shares in (("all", ()), ("one", ("sources.1.share=0", "sources.2.share=0"))):
        told = train(tmp_path / run, "examples/multi_harness/run.toml", *toy, *shares)
        assert all(f"  {name}: " in told for name in names)
        found = rollouts(tmp_path / run)
        assert all(rollout.state == "succeeded" for rollout in found)
        per = Counter((rollout.spec.source, rollout.spec.purpose) for rollout in found)
        assert {per[name, "eval"] for name in names} == {4}  # each is evaluated before and after, whatever is trained
        assert sum(per[name, "train"] for name in names) >= 12
        assert {name for name in names if per[name, "train"]} == (set(names) if run == "all" else {"mini-tool"})
        assert [set(line.by_source) for line in Log(tmp_path / run).evals()] == [set(names)] * 2


def run(directory: Path, *words: str) -> str:
    """A command in a directory that holds the examples; its output. Fails with it."""
    done = subprocess.run(parts.command(*words), cwd=directory, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60):
        return True
    return False


@contextmanager
def expert(directory: Path, tasks: str) -> Iterator[str]:
    """The base URL of an expert for the tasks of a directory, once it answers."""
    (port,) = free_ports(1)
    command = [sys.executable, "examples/expert.py", tasks, "--port", str(port)]
    process = subprocess.Popen(command, cwd=directory)
    try:
        until = time.monotonic() + 120
        while not answers(port):
            assert process.poll() is None and time.monotonic() < until, "the expert does not answer"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(30)


PIPELINES = {
    "search_agent": ["make search tasks/search --plain --steps 1 2 --train 12 --heldout 2 --worlds 12"],
    "general_agent": [
        "make shell tasks/shell --train 12 --heldout 2 --grades 1",
        "make data tasks/data --train 1 --heldout 1 --grades 1",
    ],
}


@pytest.mark.parametrize("name", PIPELINES)
def test_an_expert_is_captured_learned_from_and_training_goes_on(name: str, tmp_path: Path):
    (tmp_path / "examples").symlink_to(parts.ROOT / "examples")
    for line in PIPELINES[name]:
        run(tmp_path, "tasks", *line.split())
    folder, short = f"examples/{name}", name.removesuffix("_agent")
    source = {"search": "search", "general": "shell"}[short]
    with expert(tmp_path, f"tasks/{source}/train") as url:
        run(tmp_path, "eval", "--plain", f"{folder}/expert.toml", "--set", f"models.0.engine.base_url={url}")
    cells = [json.loads(line) for line in (tmp_path / f"grids/{short}-expert/cells.jsonl").read_text().splitlines()]
    assert [cell["reward"] for cell in cells] == [1.0] * 12  # it knows what it is asked, and the tests agree
    tuning = ["model.tiny.warmup.steps=40", "sft.epochs=3", "sft.batch_tokens=48"]
    run(tmp_path, "sft", f"{folder}/warm.toml", *(f"--set={item}" for item in tuning))
    tuned = json.loads((tmp_path / f"runs/{short}-warm/summary.json").read_text())
    assert tuned["loss_last"] < tuned["loss_first"] / 2
    settings = [*SMALL, "loop.groups_per_step=2"]
    run(tmp_path, "train", "--plain", f"{folder}/run.toml", *(f"--set={item}" for item in settings))
    found = rollouts(tmp_path / f"runs/{short}-agent")
    assert found and all(rollout.state == "succeeded" for rollout in found)
    assert {rollout.spec.source for rollout in found} == ({"search"} if short == "search" else {"shell", "data"})
