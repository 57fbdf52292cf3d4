"""The grid file: which models, in which harnesses, on which tasks, how often.

Invariants (tests/loop/test_grid_config.py):
- two models, harnesses or sources never share a name, and a name can stand in an id and in a path;
- a model without a directory is behind a chat API, or it is refused;
- what is compared never changes under its name: a grid goes on only where models, harnesses, sources, sampling and what makes
  a verdict are the same as before, added ones aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from whippletree.configuration import Config, Count, DirectoryName, Natural, PlainName
from whippletree.control.config import ControlConfig, check_reward, check_rubric_sources
from whippletree.control.rubrics.config import RubricConfig
from whippletree.engines.config import EmbeddedConfig, EngineConfig, HostedConfig
from whippletree.errors import ConfigurationError
from whippletree.gateway.config import GatewayConfig
from whippletree.loop.config import HarnessSection, LoopSection, RunConfig, RunSection, SamplingSection, SourceSection
from whippletree.loop.models import DirectoryModel, ModelConfig, check_family
from whippletree.loop.sources import TaskSet, TrailTasks
from whippletree.rendering.config import RenderingConfig
from whippletree.sandboxes.config import SandboxConfig
from whippletree.store.config import StoreConfig

STAND_IN = RenderingConfig(policy="engine", template="tiny")
"""Rendering of a model behind a chat API: the API renders and parses."""


class GridSection(Config):
    """[grid]"""

    name: DirectoryName = "grid"
    """Name of the grid; its directory is `directory`/`name` unless --run-dir says otherwise."""
    directory: str = "grids"
    """Where grid directories are made, relative to the working directory."""
    seed: Natural = 1
    """Seed of the embedded engine's sampler and of the resampling of intervals."""
    samples: Count = 1
    """Rollouts of each task, in each harness, with each model. It may be raised later: only what is missing is run."""
    passing: float = 1.0
    """A rollout has passed with at least this reward."""
    pass_at: tuple[Count, ...] = ()
    """The k of pass@k; empty: 1, and `samples` where that is more."""
    max_attempts: Count = 3
    """Attempts that a rollout gets when the infrastructure fails; after that it is invalid."""
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.95
    """Confidence of the intervals."""
    resamples: Count = 10_000
    """Bootstrap resamples of the tasks behind each interval."""
    stall_limit: Annotated[float, msgspec.Meta(gt=0)] = 1800.0
    """Seconds without any change of any rollout after which a model is given up."""
    peer_limit: Annotated[float, msgspec.Meta(gt=0)] = 300.0
    """Seconds to wait for a controller, gateway or engine that is not there, before a model is given up."""


class ModelSection(Config):
    """[[models]]"""

    name: PlainName
    """Name in tables and pictures."""
    model: ModelConfig | None = None
    """The model, as in a run file. Left out for a model that is behind a chat API (`engine.kind = "hosted"`)."""
    engine: EngineConfig = EmbeddedConfig()
    """What it runs on, as in a run file."""
    rendering: RenderingConfig = RenderingConfig()
    """Messages to tokens, as in a run file. Not used where `model` is left out."""
    sampling: SamplingSection | None = None
    """How this model is sampled; left out: as `[sampling]` says."""


class HarnessChoice(Config):
    """[[harnesses]]"""

    name: PlainName
    """Name in tables and pictures: one harness may be in a grid several times, with different settings."""
    harness: HarnessSection = HarnessSection()
    """The harness and its settings, as in a run file's sources; without variants, which are entries of their own here."""

    def __post_init__(self) -> None:
        """Raises ValueError for variants; `convert` adds the key."""
        if self.harness.variants:
            raise ValueError("variants are for training: name each variation as a harness of the grid")


class SourceChoice(Config):
    """[[sources]]"""

    name: PlainName
    """Name of the tasks in tables."""
    tasks: TaskSet
    """Where they come from, as in a run file's sources."""
    split: Literal["heldout", "train"] = "heldout"
    """Which of them."""
    limit: Annotated[int, msgspec.Meta(ge=0)] = 0
    """At most so many, spread evenly over the sorted names; 0: all."""
    reward: str = ""
    """The reward of these tasks from their verifiers' named scores; empty: that of `control.reward`."""

    def __post_init__(self) -> None:
        """Raises ValueError for a reward that is no expression; `convert` adds the key."""
        check_reward(self.reward)


class GridConfig(Config):
    """A grid file."""

    models: list[ModelSection]
    """The models. One is loaded at a time, in this order."""
    harnesses: list[HarnessChoice]
    """The harnesses."""
    sources: list[SourceChoice]
    """The tasks."""
    grid: GridSection = GridSection()
    """Name, directory, samples, intervals."""
    sampling: SamplingSection = SamplingSection()
    """How models are sampled that do not say otherwise."""
    gateway: GatewayConfig = GatewayConfig()
    """The model boundary."""
    control: ControlConfig = ControlConfig()
    """Rollouts at once, launch mode, deadlines."""
    sandbox: SandboxConfig = SandboxConfig()
    """The machine of an attempt."""
    store: StoreConfig = StoreConfig()
    """The durable record of each model."""

    @property
    def pass_at(self) -> tuple[int, ...]:
        """The k of pass@k, rising, 1 among them."""
        return tuple(sorted({1, *(self.grid.pass_at or (self.grid.samples,))}))

    def check(self) -> None:
        """Raises ConfigurationError for parts that do not go together."""
        for what, named in (("models", self.models), ("harnesses", self.harnesses), ("sources", self.sources)):
            _check_names(what, [part.name for part in named])
        check_rubric_sources(self.control, [source.name for source in self.sources])
        for model in self.models:
            _check_model(model)
            for source in self.sources:
                if model.model is not None and isinstance(source.tasks, TrailTasks):
                    check_family(model.model, source.tasks.family, source.name)
        if self.store.url and len(self.models) > 1:
            raise ConfigurationError(
                "store.url is one database, but each model has a record of its own",
                "leave it out: they lie in the directory",
            )

    def sampling_of(self, model: ModelSection) -> SamplingSection:
        """How a model is sampled."""
        return model.sampling or self.sampling


def _check_names(what: str, names: Sequence[str]) -> None:
    if not names:
        raise ConfigurationError(f"the grid has no {what}", f"name at least one below [[{what}]]")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigurationError(f"two of {what} are named {twice}", "give each its own name")


def _check_model(model: ModelSection) -> None:
    hosted = isinstance(model.engine, HostedConfig)
    if model.model is None and not hosted:
        raise ConfigurationError(
            f"models: {model.name} has no `model`", 'give its directory, or a chat API (engine.kind = "hosted")'
        )
    if model.model is None and isinstance(model.engine, HostedConfig) and model.engine.extra.get("return_token_ids"):
        raise ConfigurationError(
            f"models: {model.name} asks its API for token ids, which nothing here can read",
            "give the model's directory, or leave return_token_ids out",
        )


def run_source(source: str, harness: str) -> str:
    """Name of the source, in a model's run directory, that is these tasks in this harness."""
    return f"{source}.{harness}"


def run_config(config: GridConfig, model: ModelSection, model_directory: str = "") -> RunConfig:
    """The run file of one model of the grid: each harness with each source, nothing trained. `model_directory` stands in where
    the model has none."""
    return RunConfig(
        run=RunSection(name=model.name, seed=config.grid.seed),
        model=model.model or DirectoryModel(path=model_directory),
        sources=[
            SourceSection(
                name=run_source(source.name, harness.name),
                tasks=source.tasks,
                harness=harness.harness,
                reward=source.reward,
            )
            for source in config.sources
            for harness in config.harnesses
        ],
        sampling=config.sampling_of(model),
        loop=LoopSection(
            steps=0,
            max_attempts=config.grid.max_attempts,
            stall_limit=config.grid.stall_limit,
            peer_limit=config.grid.peer_limit,
        ),
        engine=model.engine,
        rendering=STAND_IN if model.model is None else model.rendering,
        gateway=config.gateway,
        control=msgspec.structs.replace(config.control, rubrics=_rubrics(config)),
        sandbox=config.sandbox,
        store=config.store,
    )


def check_same(before: GridConfig, now: GridConfig) -> None:
    """Raises ConfigurationError where something that has been evaluated is another thing now, under its old name."""
    for what in ("models", "harnesses", "sources"):
        known = {part.name: part for part in getattr(before, what)}
        for part in getattr(now, what):
            if known.get(part.name, part) != part:
                raise _changed(f"{what}: {part.name}")
    for model in now.models:
        earlier = next((one for one in before.models if one.name == model.name), None)
        if earlier is not None and before.sampling_of(earlier) != now.sampling_of(model):
            raise _changed(f"the sampling of {model.name}")
    for key in ("reward", "agent_timeout", "out_of_budget", "variables"):
        if getattr(before.control, key) != getattr(now.control, key):
            raise _changed(f"control.{key}")
    for source in before.sources:
        if _judges(before.control, source.name) != _judges(now.control, source.name):
            raise _changed(f"what control.rubrics say of {source.name}")


def _judges(control: ControlConfig, source: str) -> list[tuple[str, str, str]]:
    """Name, model and digest of each rubric that scores a source."""
    wanted = control.rubrics_of(source)
    return [(rubric.name, rubric.judge.model, rubric.digest()) for rubric in control.rubrics if rubric.name in wanted]


def _changed(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} is not what this grid's directory was made with", "give it another name, or begin anew with --overwrite"
    )


def _rubrics(config: GridConfig) -> tuple[RubricConfig, ...]:
    """The grid's rubrics, for the sources of a model's run."""
    return tuple(
        msgspec.structs.replace(
            rubric,
            sources=tuple(run_source(source, harness.name) for source in rubric.sources for harness in config.harnesses),
        )
        for rubric in config.control.rubrics
    )
