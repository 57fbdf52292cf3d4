"""`whippletree tasks filter`: keep the tasks that are worth training on.

Invariants (tests/cli/test_cli_task_filtering.py):
- kept and dropped are told by reason; status 1 while tasks are undecided or none is kept;
- measuring goes on where it was interrupted, with the run file that it began with; only tasks that pass the rules are tried.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from whippletree.cli.task_injecting import tell_tally
from whippletree.configuration import convert, load
from whippletree.errors import ConfigurationError
from whippletree.tasks.filtering import FilterSettings, Measured, filter_tasks, measured, passing_rules
from whippletree.tasks.images import HOSTS, Backing

MEASURING = ".measuring"  # below --to


def add_filtering(tasks: Any) -> None:
    """Register `tasks filter`."""
    parser = tasks.add_parser("filter", help="keep the tasks of a directory that are worth training on")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="where kept tasks and journal are written")
    found = parser.add_mutually_exclusive_group()
    found.add_argument("--results", type=Path, action="append", default=[], metavar="RUN", help="run directory with tries")
    found.add_argument("--measure", type=Path, metavar="RUN.toml", help="let the model of this run file try them")
    plain = FilterSettings()
    for name, kind, text in (
        ("most_tests", int, "tests of a task, at most"),
        ("tries", int, "tries of the model at each task"),
        ("passing", float, "least reward of a try that solved it"),
        ("never_share", float, "share that is kept of what no try solved"),
        ("always_share", float, "share that is kept of what every try solved"),
        ("seed", int, "draws those"),
    ):
        default = getattr(plain, name)
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, dest=name, type=kind, default=default, metavar="N", help=f"{text}; default: {default:g}")
    parser.add_argument("--sandbox", default="", metavar="KIND", help="read tasks for a backend; default: any without images")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_filter)


def _filter(arguments: argparse.Namespace) -> int:
    data = {name: getattr(arguments, name) for name in FilterSettings.__struct_fields__}
    settings = convert(FilterSettings, data, "tasks filter")
    backing = backing_of_flag(arguments)
    results: dict[str, Measured] | None = None
    if arguments.measure is not None:
        results = _read([_measure(arguments, settings, backing)], settings)
    elif arguments.results:
        results = _read(arguments.results, settings)
    done = filter_tasks(arguments.directory, arguments.to, settings, results, backing)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(done)).decode())
    else:
        tell_tally(done.tally, arguments.to)
        if done.undecided:
            print(f"  undecided {len(done.undecided)}: fewer than {settings.tries} judged tries, such as {done.undecided[0]}")
    return 1 if done.undecided or not done.tally.kept else 0


def backing_of_flag(arguments: argparse.Namespace) -> Backing:
    """What tasks are read for: any backend without images, unless --sandbox names one."""
    if not arguments.sandbox:
        return HOSTS
    from whippletree.control.imaging import backing_of
    from whippletree.sandboxes.config import SandboxConfig

    return backing_of(convert(SandboxConfig, {"kind": arguments.sandbox}, "--sandbox"), "needed")


def _read(directories: list[Path], settings: FilterSettings) -> dict[str, Measured]:
    """The tries of several run directories, those of the first first."""
    from whippletree.loop.layout import Layout
    from whippletree.store import open_store

    found: dict[str, Measured] = {}
    for directory in directories:
        place = Layout(directory).store
        if not place.is_dir():
            step = "give the directory of a run, or of one model of a grid (GRID/models/NAME)"
            raise ConfigurationError(f"{directory} holds no record of a run", step)
        with closing(open_store(place)) as store:
            for name, tries in measured(store, settings).items():
                found[name] = Measured(solved=found.get(name, Measured()).solved + tries.solved)
    return found


def _measure(arguments: argparse.Namespace, settings: FilterSettings, backing: Backing) -> Path:
    """Let the model of a run file try the tasks that pass the rules; returns the directory of that run."""
    from whippletree.cli.claiming import resumable
    from whippletree.cli.inspecting import load_run_file
    from whippletree.cli.training import EVALUATION, evaluate_run
    from whippletree.loop.config import RunConfig
    from whippletree.tasks.config import TrailFamily
    from whippletree.tasks.trail import write_tasks

    home: Path = arguments.to.absolute() / MEASURING
    directory, tried, beside = home / "run", home / "tasks", home / "beside"
    if len((config := load_run_file(arguments.measure, ())).sources) != 1:
        raise ConfigurationError(f"{arguments.measure} has {len(config.sources)} sources", "name the one harness to measure in")
    tasks = f'{{kind = "directory", train = "{beside / "train"}", heldout = "{tried}"}}'
    overrides = (f"sources.0.tasks={tasks}", f"loop.eval_samples={settings.tries}", *EVALUATION)
    if (directory / "config.toml").is_file():
        if load(RunConfig, directory / "config.toml") != load_run_file(arguments.measure, overrides):
            cause = f"{arguments.measure} is not what was measured in {directory}"
            raise ConfigurationError(cause, f"choose another directory by --to, or remove {home}")
        if (directory / "summary.json").is_file():
            return directory
        words = ["--resume", str(directory)]
    else:
        tried.mkdir(parents=True, exist_ok=True)
        for path in passing_rules(arguments.directory, settings, backing):
            if not (tried / path.name).is_symlink():
                (tried / path.name).symlink_to(path.absolute())
        write_tasks(beside, TrailFamily(train=1, heldout=0))  # a run names training tasks, though none is run here
        words = [str(arguments.measure), "--run-dir", str(directory)]
        words += [word for override in overrides for word in ("--set", override)]
    with contextlib.redirect_stdout(sys.stderr), resumable("tasks filter"):  # --json means one document
        status = evaluate_run(words)
    if status:
        raise ConfigurationError(f"measuring ended with status {status}", "see what it said; the same command goes on with it")
    return directory
