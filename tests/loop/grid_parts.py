"""What tests of the grid are made of: cells by counts, task directories, grids of small harnesses in real sandboxes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control_world import write_model, write_task

from whippletree.loop.grid.cells import Cell, GridTask

ROOT = Path(__file__).parents[2]
HARNESS = "harness_parts:HttpHarness"
WORKS, IDLES = {"command": "touch /app/done"}, {"command": "true"}


def tasks(count: int, source: str = "s") -> list[GridTask]:
    return [GridTask(source=source, task_id=f"t{number}", task_path=f"/tasks/t{number}") for number in range(count)]


def cell(task: str, passed: bool | None, **fields: object) -> Cell:
    """A cell that passed, failed or (None) is invalid."""
    given: dict[str, object] = {
        "model": "m",
        "harness": "h",
        "source": "s",
        "task_id": task,
        "sample": 0,
        "rollout_id": f"s.h-{task}-00",
        "state": "failed" if passed is None else "succeeded",
        "reward": None if passed is None else float(passed),
        "passed": bool(passed),
        "cause": "sandbox" if passed is None else "",
    }
    return Cell(**(given | fields))  # type: ignore[arg-type]


def write_world(directory: Path, *, train: int = 3, heldout: int = 4) -> Path:
    """Task directories (passed where /app/done exists) and a tokenizer."""
    for split, count in (("train", train), ("heldout", heldout)):
        for number in range(count):
            write_task(directory / "tasks" / split / f"{split}-{number}")
    write_model(directory / "model")
    (directory / "model" / "config.json").write_text("{}")
    return directory


def grid_text(world: Path, *, harnesses: Sequence[tuple[str, dict]], models: str = "", samples: int = 2, more: str = "") -> str:
    """A grid file over a world."""
    parts = [f'[grid]\nname = "g"\nsamples = {samples}\nresamples = 200\nstall_limit = 60\npeer_limit = 20\n{more}', models]
    if not models:
        parts.append(scripted(world, "one"))
    for name, settings in harnesses:
        written = ", ".join(f"{key} = {value!r}" for key, value in settings.items())
        parts.append(f'[[harnesses]]\nname = "{name}"\nharness = {{ name = "{HARNESS}", settings = {{ {written} }} }}')
    paths = ", ".join(f'{split} = "{world}/tasks/{split}"' for split in ("train", "heldout"))
    parts.append(f'[[sources]]\nname = "dir"\ntasks = {{ kind = "directory", {paths} }}')
    parts.append("[control]\nconcurrency = 4\n[control.pool]\nhosts = 1\ntenants = 4")
    return "\n\n".join(parts) + "\n"


def scripted(world: Path, name: str) -> str:
    """A model that answers at random, with a tokenizer of its own."""
    return (
        f'[[models]]\nname = "{name}"\nmodel = {{ kind = "directory", path = "{world}/model" }}\n'
        f'engine = {{ kind = "scripted", model = "{world}/model", seed = 1 }}\nrendering = {{ template = "tiny" }}'
    )


def environment() -> dict[str, str]:
    """For processes of a grid: they must find the tests' harness."""
    return os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/control'}", "OMP_NUM_THREADS": "1"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "whippletree.cli", *arguments]


def evaluate(*arguments: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
    """`whippletree eval` to its end."""
    return subprocess.run(
        command("eval", "--plain", *arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def fine(_: dict[str, Any]) -> tuple[str, bytes]:
    """A chat API's streamed answer to everything: "fine"."""
    events = [
        {"choices": [{"index": 0, "delta": {"content": "fine"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 2}},
    ]
    data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    return "text/event-stream", data


def hosted(url: str, name: str = "api") -> str:
    """A model behind a chat API."""
    return f'[[models]]\nname = "{name}"\nengine = {{ kind = "hosted", base_url = "{url}", model = "theirs" }}'
