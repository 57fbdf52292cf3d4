"""One whole check: every scenario that applies, one after another, then the report."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from whippletree import sandboxes
from whippletree.control.config import ControlConfig, DeadlineConfig, PoolConfig
from whippletree.control.contract.grading import NEEDS, grade
from whippletree.control.contract.model import make_renderer
from whippletree.control.contract.report import Report, checked
from whippletree.control.contract.scenarios import Scenario, known, scenarios
from whippletree.control.contract.seen import measured
from whippletree.control.contract.world import Run, World
from whippletree.errors import ConfigurationError, HarnessError, did_you_mean
from whippletree.harnesses import load_harness
from whippletree.harnesses.installing import is_installed
from whippletree.protocols import HarnessFacts

LIMIT = 120.0  # seconds of one run


async def check_harness(
    name: str,
    *,
    directory: Path | None = None,
    launch: str = "",
    settings: Mapping[str, object] | None = None,
    facts: HarnessFacts | None = None,
    only: Collection[str] = (),
    keep: Path | None = None,
    limit: float = LIMIT,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Check a harness by its shipped name or "module:Class", in real sandboxes, against the scripted engine.

    `directory`: where harnesses are installed. `launch`: "process" or "pool"; "": the first that the adapter can. `settings`:
    the harness's own, under which all scenarios run. `facts` are held against it instead of the adapter's: those of the agent
    that a generic adapter starts. `only`: names of scenarios or points, for looking at some closely; points that need others
    are then "not run". `keep`: an empty or new folder in which each run's record, log and account are left. `limit`: seconds
    of one run. `progress` is told each scenario before it begins.

    Raises HarnessError where it is not installed, ConfigurationError where it, or a name of `only`, is not known.
    """
    wanted = _wanted(only)
    harness = load_harness(name, directory)
    facts = facts or harness.facts
    if not is_installed(harness, directory):
        raise HarnessError(f"{name} {harness.version} is not installed", f"run `whippletree harness install {name}`")
    how = launch or facts.launches[0]
    if how not in harness.facts.launches:
        raise ConfigurationError(f"{name} cannot be launched as {how!r}", f"use one of {', '.join(harness.facts.launches)}")
    place = Path(tempfile.mkdtemp(prefix="whippletree-check-"))
    try:
        (place / "model").mkdir()
        world = World(
            name,
            facts,
            settings or {},
            directory=place,
            renderer=make_renderer(place / "model"),
            control=_control(how, directory, limit),
        )
        backend = sandboxes.choose(world.sandbox)  # which tries them, once: not while a gateway serves
        dialect_setting = harness.settings is not None and "dialect" in harness.settings.__struct_fields__
        runs, skipped = await _run(world, scenarios(facts, dialect_setting=dialect_setting), wanted, progress)
        return Report(
            harness=harness.name,
            version=harness.version,
            launch=how,
            sandbox=backend.kind,
            facts=checked(facts),
            lines=grade(facts, runs, skipped),
            measured=measured(next(iter(runs.get("plain", ())), None)),
        )
    finally:
        if keep is not None:
            shutil.copytree(place, keep, dirs_exist_ok=True, symlinks=True)
        shutil.rmtree(place, ignore_errors=True)


async def _run(
    world: World, every: Sequence[Scenario], wanted: Collection[str], progress: Callable[[str], None]
) -> tuple[dict[str, Sequence[Run]], list[str]]:
    """The runs of those that are wanted (none named: all), and the names of the others."""
    runs: dict[str, Sequence[Run]] = {}
    skipped = []
    for scenario in every:
        if not wanted or scenario.name in wanted:
            progress(scenario.name)
            runs[scenario.name] = await world.run(scenario)
        else:
            skipped.append(scenario.name)
    return runs, skipped


def _control(launch: str, directory: Path | None, limit: float) -> ControlConfig:
    """How attempts are launched: two at once at most, each within `limit` seconds."""
    return ControlConfig(
        launch="pool" if launch == "pool" else "process",
        harness_directory=str(directory or ""),
        deadlines=DeadlineConfig(agent=limit),
        pool=PoolConfig(hosts=1, tenants=2),
    )


def _wanted(only: Collection[str]) -> set[str]:
    """The scenarios that are asked for, by their own names or those of points. Raises ConfigurationError for any other name."""
    found: set[str] = set()
    for name in only:
        if name in known():
            found.add(name)
        elif name in NEEDS:
            found.update(NEEDS[name])
        else:
            advice = did_you_mean(name, [*known(), *NEEDS], f"scenarios are {', '.join(known())}")
            raise ConfigurationError(f"{name!r} is neither a scenario nor a point of the contract", advice)
    return found
