"""The evaluation grid of the experiment's first seed: `whippletree eval` over its policies and all four harnesses.

multi.toml + run directories ─► grid.toml ─► whippletree eval ─► grid.json (kept here), the picture of the page
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from experiments.running import PlannedRun
from whippletree.configuration import dump, load
from whippletree.files import write_atomically
from whippletree.loop.config import RunConfig
from whippletree.loop.grid.config import GridConfig, GridSection, HarnessChoice, ModelSection, SourceChoice
from whippletree.loop.grid.running import GridLayout
from whippletree.loop.grid.tables import Results
from whippletree.loop.layout import Layout
from whippletree.loop.models import DirectoryModel

BEFORE = "before"


def grid_config(config: RunConfig, plans: Sequence[PlannedRun], runs: Path) -> GridConfig:
    """The models are the warm-up and the last checkpoint of each of these runs (of one seed); the rest is as in the runs."""
    layouts = {plan.variant: Layout((runs / plan.name).resolve()) for plan in plans}
    first = next(iter(layouts.values()))
    models = {BEFORE: first.read_services().model_directory}
    models |= {name: str(last_checkpoint(layout)) for name, layout in layouts.items()}
    return GridConfig(
        models=[
            ModelSection(name=name, model=DirectoryModel(path=path), engine=config.engine, rendering=config.rendering)
            for name, path in models.items()
        ],
        harnesses=[HarnessChoice(name=source.name, harness=source.harness) for source in config.sources],
        sources=[SourceChoice(name="trail", tasks=config.sources[0].tasks)],
        grid=GridSection(name="multi-harness"),
        sampling=config.sampling,
        control=config.control,
    )


def last_checkpoint(layout: Layout) -> Path:
    """The newest checkpoint of a run. Raises FileNotFoundError where there is none."""
    found = sorted((layout.directory / "checkpoints").glob("step-*"))
    if not found:
        raise FileNotFoundError(f"{layout.directory} has no checkpoint")
    return found[-1]


def make_grid(run_file: Path, plans: Sequence[PlannedRun], runs: Path, results: Path) -> None:
    """Run what is missing of the grid, and keep its results. `plans`: runs of one seed.

    Raises CalledProcessError where a cell could not be judged.
    """
    if results.is_file():
        return
    file, directory = runs / "grid.toml", runs / "grid"
    write_atomically(file, dump(grid_config(load(RunConfig, run_file, plans[0].settings), plans, runs)).encode())
    command = [sys.executable, "-m", "whippletree.cli", "eval", str(file), "--run-dir", str(directory), "--plain"]
    with (runs / "grid.out").open("a") as output:
        subprocess.run(command, check=True, stdout=output, stderr=subprocess.STDOUT)
    results.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(GridLayout(directory.resolve()).results, results)


def read_grid(results: Path) -> Results | None:
    """What the grid found; None where it was not run."""
    return msgspec.json.decode(results.read_bytes(), type=Results) if results.is_file() else None
