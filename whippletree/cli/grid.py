"""`whippletree eval GRID.toml`: a file with a table [grid] is an evaluation grid (docs/evaluation.md).

eval ─► grid directory ─► model by model (loop/grid/running.py) ─► tables in the terminal, CSV, JSON lines, picture

Invariants (tests/loop/test_grid_running.py):
- the same command again goes on where it was stopped, and says so; --overwrite begins anew;
- what was found is on the terminal before anything of it is written, so that a full disk loses no table;
- status 0: every cell was judged; 1: some are invalid or missing; 130: it was stopped.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from whippletree.cli.checking import check_harnesses
from whippletree.cli.claiming import claimed, overwrite, resumable
from whippletree.configuration import load
from whippletree.errors import ConfigurationError
from whippletree.loop.grid.config import GridConfig
from whippletree.loop.grid.running import (
    Found,
    GridLayout,
    GridRun,
    find_results,
    open_grid,
    read_grid,
    resolve_tasks,
    write_results,
)
from whippletree.loop.grid.tables import ALL
from whippletree.ui.grid import GridView, print_results
from whippletree.ui.grid_pictures import draw_grid
from whippletree.ui.plots import NO_PICTURE
from whippletree.ui.rollout import make_console


def is_grid(arguments: argparse.Namespace) -> bool:
    """Whether `eval` was given a grid: its file has a table [grid], or its directory has been one."""
    if arguments.resume is not None:
        return GridLayout(arguments.resume).config.is_file()
    return arguments.run_file is not None and holds(arguments.run_file, "grid")


def holds(path: Path, table: str) -> bool:
    """Whether a TOML file has this table at its top. One that cannot be read has none: whoever loads it says what is wrong."""
    try:
        return table in tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False


def load_grid_file(path: Path, overrides: Sequence[str]) -> GridConfig:
    """A grid file, with the settings of its harnesses checked too. Raises ConfigurationError."""
    config = load(GridConfig, path, overrides)
    config.check()
    check_harnesses([harness.harness for harness in config.harnesses], f"{path}: harnesses", "harness.settings")
    return config


def evaluate_grid(arguments: argparse.Namespace, cache: Path) -> int:
    """Run a grid to its end. Raises WhippletreeError."""
    console = Console(force_terminal=False if arguments.plain else None)
    with ExitStack() as held:
        config, layout = _open(arguments, held)
        run = GridRun(config, layout, cache=cache, observer=(view := GridView(0, console=console)))
        view.total = run.total
        with resumable("eval", layout.directory), view:
            found = run.run(retry_invalid=arguments.retry_invalid)
        return _finish(found, layout)


def _open(arguments: argparse.Namespace, held: ExitStack) -> tuple[GridConfig, GridLayout]:
    if arguments.resume is not None:
        if arguments.overrides or arguments.run_file:
            raise ConfigurationError("--resume goes on with the grid's own file", "leave out the file and --set")
        found = read_grid(arguments.resume)
        held.enter_context(claimed(arguments.resume))
        return found
    config = load_grid_file(arguments.run_file, arguments.overrides)
    directory = arguments.run_dir or Path(config.grid.directory) / config.grid.name
    held.enter_context(claimed(directory))
    if arguments.overwrite and GridLayout(directory).config.is_file():
        overwrite(directory, [arguments.run_file])
    return config, open_grid(config, directory)


def report_grid(directory: Path) -> int:
    """Read the records of a grid again; write its tables and its picture."""
    config, layout = read_grid(directory)
    return _finish(find_results(config, layout, resolve_tasks(config, layout)), layout)


def _finish(found: Found, layout: GridLayout) -> int:
    console, results = make_console(), found.results
    print_results(results, console)
    write_results(found, layout)
    names = ["grid.csv", "differences.csv", "cells.jsonl", "grid.json"]
    console.out("\n".join(str(layout.directory / name) for name in names))
    console.out(str(draw_grid(results, layout.picture) or NO_PICTURE))
    blocks = [block for block in results.blocks if block.source == ALL]
    return 0 if all(block.valid == block.cells for block in blocks) else 1
