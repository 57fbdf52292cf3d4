"""Running a grid: one model after the other, each with an engine, a gateway and a controller of its own.

    for each model with cells to run: prepare ─► start engine, gateway, controller ─► create rollouts ─► wait ─► stop them
      models/NAME/ is a run directory: its record holds the cells, `whippletree rollouts` reads it
    cells.jsonl, grid.csv, differences.csv, grid.json: written after each model, from all records

The wait ends when every cell of the model is over (each attempt has its deadlines), when nothing moves for `stall_limit`, when
a peer is missing for `peer_limit`, or when a process was given up; the last three give the model up, with the reason, and
the next one goes on.
Invariants (tests/loop/test_grid_running.py):
- a model whose cells are all over is not loaded again;
- after kill -9 at any moment the same command runs what is missing and nothing else;
- a model that cannot be evaluated leaves the others' results as they are, and is named with its reason;
- results that cannot be written stop no model: what is found is returned, and is written last;
- one process works on a grid at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from whippletree.configuration import dump, load
from whippletree.control.controller import absent, only_one
from whippletree.control.imaging import backing_of
from whippletree.control.supervisor import Supervisor
from whippletree.errors import ConfigurationError, WhippletreeError, words_of
from whippletree.files import write_atomically, write_json
from whippletree.gateway.client import GatewayControl
from whippletree.gateway.keys import control_key, load_secret
from whippletree.loop.engine import connect_engine
from whippletree.loop.fleet import Fleet
from whippletree.loop.grid.cells import (
    Cell,
    GridTask,
    latest,
    read_cells,
    read_lines,
    spread,
    to_create,
    wanted,
    write_lines,
)
from whippletree.loop.grid.config import GridConfig, ModelSection, check_same, run_config
from whippletree.loop.grid.standin import write_stand_in
from whippletree.loop.grid.statistics import Resampling
from whippletree.loop.grid.tables import Block, Difference, Results, summarise, to_csv
from whippletree.loop.layout import Layout
from whippletree.loop.models import prepare_model
from whippletree.loop.processes import moved_services, new_services, sampling_children
from whippletree.loop.sources import resolve
from whippletree.loop.watch import Watch
from whippletree.protocols import Store
from whippletree.sandboxes import choose
from whippletree.store import open_store
from whippletree.tasks.images import HOSTS
from whippletree.types import Sampling


@dataclass(frozen=True)
class GridLayout:
    """Paths of one grid."""

    directory: Path

    @property
    def config(self) -> Path:
        """The resolved grid file."""
        return self.directory / "grid.toml"

    @property
    def cells(self) -> Path:
        """One line per cell."""
        return self.directory / "cells.jsonl"

    @property
    def results(self) -> Path:
        """Blocks and differences in one object."""
        return self.directory / "grid.json"

    @property
    def picture(self) -> Path:
        """Heat map and bars."""
        return self.directory / "grid.png"

    def model(self, name: str) -> Layout:
        """The run directory of a model."""
        return Layout(self.directory / "models" / name)


class Observer(Protocol):
    """Who is told how a grid gets on. Nothing here may wait."""

    def say(self, stage: str) -> None:
        """What the grid is doing now."""
        ...

    def begin(self, model: str, *, total: int, done: int) -> None:
        """A model's cells: how many are wanted, how many were over before."""
        ...

    def update(self, model: str, *, done: int, passed: int, invalid: int) -> None:
        """Where the model's cells stand."""
        ...


def open_grid(config: GridConfig, directory: Path) -> GridLayout:
    """The grid's directory: a new one, or that of a grid which this one goes on with. Raises ConfigurationError."""
    config.check()
    layout = GridLayout(directory.resolve())
    if Layout(layout.directory).config.is_file():
        raise ConfigurationError(f"{directory} holds a run, not a grid", "choose another directory")
    if layout.config.is_file():
        check_same(load(GridConfig, layout.config), config)
    layout.directory.mkdir(parents=True, exist_ok=True)
    write_atomically(layout.config, dump(config).encode())
    return layout


def read_grid(directory: Path) -> tuple[GridConfig, GridLayout]:
    """A grid's own configuration. Raises ConfigurationError where there is none."""
    layout = GridLayout(directory.resolve())
    if not layout.config.is_file():
        raise ConfigurationError(f"{directory} holds no grid", "give the directory of a grid, for example grids/demo")
    return load(GridConfig, layout.config), layout


def resolve_tasks(config: GridConfig, layout: GridLayout) -> list[GridTask]:
    """The tasks of every source, loaded and checked. Raises TaskError or ConfigurationError."""
    found: list[GridTask] = []
    in_cluster = config.control.launch == "kubernetes"
    backing = HOSTS if in_cluster else backing_of(config.sandbox, config.control.images)
    for section in config.sources:
        source, held = resolve(
            section.name,
            section.tasks,
            "",
            1.0,
            layout.directory,
            variables=config.control.variables,
            backing=backing,
        )
        if section.split == "heldout":
            every = [
                GridTask(source=section.name, task_id=task.task_id, task_path=task.task_path, labels=task.labels)
                for task in held
            ]
        else:
            every = [
                GridTask(source=section.name, task_id=name, task_path=path, labels=source.labels[name])
                for name, path in source.tasks
            ]
        if not every:
            cause = f"source {section.name} has no {section.split} tasks"
            raise ConfigurationError(cause, f"name their directory as its tasks.{section.split}, or choose the other split")
        found += spread(every, section.limit)
    return found


class GridRun:
    """A grid in progress."""

    def __init__(self, config: GridConfig, layout: GridLayout, *, cache: Path, observer: Observer) -> None:
        """`cache`: where generated models are kept. Raises TaskError and ConfigurationError."""
        self.config = config
        self.layout = layout
        self.tasks = resolve_tasks(config, layout)
        self.failed: dict[str, str] = {}
        self._cache = cache
        self._observer = observer

    @property
    def total(self) -> int:
        """Cells of the whole grid."""
        return len(self.config.models) * self.per_model

    @property
    def per_model(self) -> int:
        """Cells of one model."""
        return len(self.tasks) * len(self.config.harnesses) * self.config.grid.samples

    def run(self, *, retry_invalid: bool = False) -> Found:
        """Run what is missing, model by model. A model that fails is in `failed` with its reason. What is found is the caller's
        to write, once it has shown it."""
        with only_one(self.layout.directory / "grid.lock"):
            for model in self.config.models:
                self._observer.say(f"{model.name}: looking at what is there")
                try:
                    self._run_model(model, retry_invalid)
                except WhippletreeError as error:
                    self.failed[model.name] = str(error)
                    self._observer.say(f"{model.name} was given up: {error}")
                found = self._write_so_far()
            return found

    def _run_model(self, model: ModelSection, retry_invalid: bool) -> None:
        layout = self.layout.model(model.name)
        with closing(open_store(layout.store, config=self.config.store, instance="grid")) as store:
            cells = wanted(self.tasks, [harness.name for harness in self.config.harnesses], self.config.grid.samples)
            known = latest(store.rollouts(purpose="eval"))
            section = self.config.sampling_of(model)
            specs = to_create(
                cells,
                known,
                {harness.name: harness.harness.name for harness in self.config.harnesses},
                sampling=Sampling(temperature=section.temperature, top_p=section.top_p, max_tokens=section.max_tokens),
                max_attempts=self.config.grid.max_attempts,
                retry_invalid=retry_invalid,
            )
            again = {spec.rollout_id for spec in specs}
            places = {place for place, _ in cells}
            before = [rollout for place, (rollout, _) in known.items() if place in places]
            under_way = [rollout.spec.rollout_id for rollout in before if not rollout.terminal]
            names = frozenset([*again, *under_way])
            self._observer.begin(model.name, total=len(cells), done=len(cells) - len(names))
            if not names:
                return
            self._prepare(model, layout)
            store.create_rollouts(specs).result()
            self._sample(model, layout, store, names)

    def _prepare(self, model: ModelSection, layout: Layout) -> None:
        """The model's run directory: configuration, model, addresses."""
        directory = layout.directory
        config = run_config(self.config, model, str(directory / "tokenizer"))
        write_atomically(layout.config, dump(config).encode())
        layout.log("gateway").parent.mkdir(parents=True, exist_ok=True)
        load_secret(layout.secret)
        if layout.services_file.is_file():
            layout.write_services(moved_services(config, layout.read_services()))
            return
        self._observer.say(f"{model.name}: preparing the model")
        if model.model is None:
            found = write_stand_in(directory / "tokenizer")
        else:
            found = prepare_model(model.model, seed=self.config.grid.seed, cache=self._cache)
        isolation = choose(self.config.sandbox).sentence
        layout.write_services(new_services(config, model_directory=str(found), isolation=isolation, started=time.time()))

    def _sample(self, model: ModelSection, layout: Layout, store: Store, names: frozenset[str]) -> None:
        """Start the model's processes and wait until these rollouts are over."""
        config = run_config(self.config, model, str(layout.directory / "tokenizer"))
        services = layout.read_services()
        control = GatewayControl(services.gateway_url, control_key(load_secret(layout.secret)))
        with Supervisor() as supervisor:
            for child in sampling_children(config, layout):
                self._observer.say(f"{model.name}: starting {child.name}")
                supervisor.start(child)
            self._observer.say(f"{model.name}: {services.isolation}")
            with closing(Fleet(control, [connect_engine(config.engine, services.engine_url)])) as fleet:
                watch = Watch(
                    store,
                    "eval",
                    stall_limit=self.config.grid.stall_limit,
                    missing=lambda: fleet.missing() or absent(layout.directory),
                    peer_limit=self.config.grid.peer_limit,
                )
                watch.until(lambda: self._over(model, watch, names), beside=lambda: _checked(supervisor.check))
            self._observer.say(f"{model.name}: stopping")

    def _over(self, model: ModelSection, watch: Watch, names: frozenset[str]) -> bool:
        """Whether all of them are; says where they stand."""
        ended = [rollout for name in names if (rollout := watch.rollouts.get(name)) is not None and rollout.terminal]
        passed = sum(rollout.reward is not None and rollout.reward >= self.config.grid.passing for rollout in ended)
        invalid = sum(rollout.reward is None for rollout in ended)
        self._observer.update(model.name, done=len(ended), passed=passed, invalid=invalid)
        return len(ended) == len(names)

    def _write_so_far(self) -> Found:
        """Write cells and results as they stand, if that is possible."""
        found = find_results(self.config, self.layout, self.tasks, failed=self.failed)
        try:
            write_results(found, self.layout)
        except OSError as error:  # the records hold it all, and whoever writes last is told
            self._observer.say(f"{error.filename2 or error.filename} cannot be written: {words_of(error)}; the grid goes on")
        return found


def _checked(check: Callable[[], None]) -> bool:
    """`check` raises where something is wrong; nothing has moved otherwise."""
    check()
    return False


def record_of(config: GridConfig, layout: GridLayout) -> list[Cell]:
    """The cells of every model's record."""
    before = read_lines(layout.cells)
    found: list[Cell] = []
    for model in config.models:
        place = layout.model(model.name)
        if not place.store.is_dir():
            continue
        written = {cell.rollout_id: cell for cell in before if cell.model == model.name}
        with closing(open_store(place.store, config=config.store, instance="reader")) as store:
            found += read_cells(store, model.name, passing=config.grid.passing, written=written)
    return found


@dataclass(frozen=True)
class Found:
    """What the records of a grid hold, and what it comes to."""

    cells: Sequence[Cell]
    results: Results


def find_results(
    config: GridConfig, layout: GridLayout, tasks: Sequence[GridTask], *, failed: dict[str, str] | None = None
) -> Found:
    """Read the records; nothing is written."""
    cells = record_of(config, layout)
    results = summarise(
        config.grid.name,
        cells,
        tasks,
        models=[model.name for model in config.models],
        harnesses=[harness.name for harness in config.harnesses],
        samples=config.grid.samples,
        pass_at=config.pass_at,
        how=Resampling(confidence=config.grid.confidence, resamples=config.grid.resamples, seed=config.grid.seed),
        failed=failed,
    )
    return Found(cells, results)


def write_results(found: Found, layout: GridLayout) -> None:
    """Write cells.jsonl, grid.json, grid.csv and differences.csv. Raises OSError."""
    results = found.results
    write_lines(layout.cells, found.cells)
    write_json(layout.results, results)
    write_atomically(layout.directory / "grid.csv", to_csv(results.blocks, Block).encode())
    write_atomically(layout.directory / "differences.csv", to_csv(results.differences, Difference).encode())


def read_results(layout: GridLayout) -> Results:
    """What was written last. Raises ConfigurationError."""
    try:
        return msgspec.json.decode(layout.results.read_bytes(), type=Results)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(
            f"{layout.results} cannot be read: {words_of(error)}", "run `whippletree eval` on its file"
        ) from error
