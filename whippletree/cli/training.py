"""`whippletree train` and `whippletree eval`: prepare a run directory, start its processes, watch, stop.

train ─► prepare (configuration, model, tasks, ports) ─► supervisor: engine, gateway, controller, learner
  └── reads the record twice a second and shows it; waits for the learner's end; Ctrl-C stops all in reverse order
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from whippletree.cli.claiming import claimed, overwrite, resumable
from whippletree.cli.inspecting import load_run_file
from whippletree.configuration import dump, load
from whippletree.control.supervisor import Supervisor
from whippletree.errors import ConfigurationError, ProcessError
from whippletree.gateway.keys import load_secret
from whippletree.loop.config import RunConfig
from whippletree.loop.layout import Layout
from whippletree.loop.metrics import Log, Summary
from whippletree.loop.models import prepare_model
from whippletree.loop.processes import learner_child, moved_services, new_services, sampling_children
from whippletree.loop.watch import Watch
from whippletree.protocols import Store
from whippletree.sandboxes import choose
from whippletree.store import open_store
from whippletree.types import Purpose
from whippletree.ui.panel import RunView, sources_text

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "whippletree"
POLL_SECONDS = 0.5
PURPOSES: tuple[Purpose, ...] = ("train", "eval")
EVALUATION = ("loop.steps=0",)  # the overrides that make a run one of its held-out tasks alone


def add_commands(commands: Any) -> None:
    """Register the commands of this module."""
    for name, text, run in (
        ("train", "train a model, everything on this machine", _train),
        ("eval", "evaluate a run's held-out tasks, or a grid of models and harnesses, without training", _evaluate),
    ):
        parser = commands.add_parser(name, help=text)
        _add_arguments(parser, name)
        parser.set_defaults(run=run)


def _add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("run_file", type=Path, nargs="?", help="a run file (TOML); left out with --resume")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override one key")
    parser.add_argument("--run-dir", type=Path, help="the run directory; default: run.directory/run.name")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with an interrupted run")
    parser.add_argument("--overwrite", action="store_true", help="remove an earlier run of the same name first")
    parser.add_argument("--plain", action="store_true", help="one line per event instead of the live panel")
    if name == "eval":
        parser.add_argument("--retry-invalid", action="store_true", help="grids: run cells again that were not judged")


def evaluate_run(words: Sequence[str]) -> int:
    """`whippletree eval` of one run with these words, as a part of another command, which adds EVALUATION and says how to go on
    after Ctrl-C. Raises WhippletreeError."""
    parser = argparse.ArgumentParser(prog="whippletree eval")
    _add_arguments(parser, "eval")
    with ExitStack() as held:
        return _run_in(*_open(parser.parse_args(words), (), held), Console())


def _train(arguments: argparse.Namespace) -> int:
    return _run(arguments, "train", ())


def _evaluate(arguments: argparse.Namespace) -> int:
    from whippletree.cli.grid import evaluate_grid, is_grid

    if is_grid(arguments):
        return evaluate_grid(arguments, CACHE / "models")
    if arguments.retry_invalid:
        raise ConfigurationError("--retry-invalid is for grids", "leave it out: a run's evaluation is one line")
    return _run(arguments, "eval", EVALUATION)


def _run(arguments: argparse.Namespace, command: str, more: tuple[str, ...]) -> int:
    console = Console(force_terminal=False if arguments.plain else None)
    with ExitStack() as held:
        config, layout = _open(arguments, more, held)
        with resumable(command, layout.directory):
            return _run_in(config, layout, console)


def _run_in(config: RunConfig, layout: Layout, console: Console) -> int:
    with (
        closing(Counts(layout)) as counts,
        RunView(layout.directory, config.loop.steps, console=console, activity=counts) as view,
    ):
        if not layout.services_file.is_file():
            _prepare(config, layout, view)
        else:
            layout.write_services(moved_services(config, layout.read_services()))
        services = layout.read_services()
        view.isolate(services.isolation)
        _supervise(config, layout, view)
        view.say("finished")
    return _finish(layout, console)


def _open(arguments: argparse.Namespace, more: tuple[str, ...], held: ExitStack) -> tuple[RunConfig, Layout]:
    """The run's configuration and directory, which is held: a new one, or that of --resume."""
    overrides = (*arguments.overrides, *more)
    if arguments.resume is not None:
        layout = Layout(arguments.resume.resolve())
        if not layout.config.is_file():
            raise ConfigurationError(f"{arguments.resume} holds no run", "give the directory of a run, for example runs/demo")
        if arguments.overrides or arguments.run_file:
            raise ConfigurationError("--resume goes on with the run's own configuration", "leave out the run file and --set")
        held.enter_context(claimed(layout.directory))
        return load(RunConfig, layout.config), layout
    if arguments.run_file is None:
        raise ConfigurationError("no run file", "give one, for example examples/demo.toml, or --resume DIR")
    config = load_run_file(arguments.run_file, overrides)
    directory = arguments.run_dir or Path(config.run.directory) / config.run.name
    layout = Layout(directory.resolve())
    held.enter_context(claimed(layout.directory))
    if layout.config.exists():
        if not arguments.overwrite:
            raise ConfigurationError(f"{directory} holds a run", f"go on with --resume {directory}, or give --overwrite")
        overwrite(layout.directory, [arguments.run_file])
    layout.directory.mkdir(parents=True, exist_ok=True)
    layout.config.write_text(dump(config), encoding="utf-8")
    return config, layout


def _prepare(config: RunConfig, layout: Layout, view: RunView) -> None:
    from whippletree.loop.learning import resolve_sources

    started = time.time()
    open_store(layout.store, config=config.store).close()  # decides where the record lies; what is wrong with it shows at once
    view.say("writing tasks")
    sources, heldout = resolve_sources(config, layout)
    view.say(f"{sum(len(source.tasks) for source in sources)} training tasks, {len(heldout)} held-out tasks")
    view.say("preparing the model (minutes where it has to be made; then it is kept in the cache)")
    model = prepare_model(config.model, seed=config.run.seed, cache=CACHE / "models")
    load_secret(layout.secret)
    layout.write_services(
        new_services(config, model_directory=str(model), isolation=choose(config.sandbox).sentence, started=started)
    )


def _supervise(config: RunConfig, layout: Layout, view: RunView) -> None:
    """Run the processes until the learner is done. Raises ProcessError when one was given up."""
    with Supervisor() as supervisor:
        for child in (*sampling_children(config, layout), learner_child(config, layout)):
            view.say(f"starting {child.name}")
            supervisor.start(child)
        view.say("running")
        while not supervisor.finished("learner"):
            supervisor.check()
            view.refresh()
            time.sleep(POLL_SECONDS)
        view.refresh()
        view.say("stopping")


class Counts:
    """Counts of the run's rollouts by state, for the panel; reads only what changed since the last look."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._store: Store | None = None
        self._watches: list[Watch] = []

    def __call__(self) -> dict[str, int]:
        """How many rollouts are in each state; states that no rollout is in are left out."""
        if self._store is None:
            if not self.layout.services_file.is_file():
                return {}
            self._store = open_store(self.layout.store)
            self._watches = [Watch(self._store, purpose, stall_limit=0.0) for purpose in PURPOSES]
        for watch in self._watches:
            watch.refresh()
        return dict(sorted(Counter(rollout.state for watch in self._watches for rollout in watch.rollouts.values()).items()))

    def close(self) -> None:
        """Let go of the store."""
        if self._store is not None:
            self._store.close()
            self._store = None


def _finish(layout: Layout, console: Console) -> int:
    from whippletree.ui.report import write_report

    page, _ = write_report(layout.directory)
    try:
        summary = msgspec.json.decode(layout.summary.read_bytes(), type=Summary)
    except OSError as error:
        raise ProcessError("the learner ended without a summary", f"see {layout.log('learner')}") from error
    before = "–" if summary.heldout_before is None else f"{summary.heldout_before:.3f}"
    after = "–" if summary.heldout_after is None else f"{summary.heldout_after:.3f}"
    console.out(
        f"held-out success {before} → {after}; {summary.rollouts} rollouts, {summary.calls} calls, "
        f"{summary.tokens_trained} tokens trained in {summary.seconds_total:.0f} s\n"
        f"{sources_text(Log(layout.directory).evals())}{layout.summary}\n{page}",
        highlight=False,
    )
    return 0
