"""One whole check: every scenario that applies, one after another, then the report."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from whippletree import sandboxes
from whippletree.control.config import ControlConfig, DeadlineConfig, PoolConfig
from whippletree.control.contract.grading import grade, measured
from whippletree.control.contract.model import make_renderer
from whippletree.control.contract.report import Report, checked
from whippletree.control.contract.scenarios import scenarios
from whippletree.control.contract.world import Run, World
from whippletree.errors import ConfigurationError, HarnessError
from whippletree.harnesses import load_harness
from whippletree.harnesses.installing import is_installed

LIMIT = 120.0  # seconds of one run


async def check_harness(
    name: str,
    *,
    directory: Path | None = None,
    launch: str = "",
    only: Collection[str] = (),
    keep: Path | None = None,
    limit: float = LIMIT,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Check a harness by its shipped name or "module:Class", in real sandboxes, against the scripted engine.

    `directory`: where harnesses are installed. `launch`: "process" or "pool"; "": the first that the adapter can. `only`: names
    of scenarios, for looking at one closely; the points that need others then fail. `keep`: an empty or new folder in which
    each run's record, log and account are left. `limit`: seconds of one run. `progress` is told each scenario before it begins.

    Raises HarnessError where it is not installed, ConfigurationError where it is not known.
    """
    harness = load_harness(name, directory)
    if not is_installed(harness, directory):
        raise HarnessError(f"{name} {harness.version} is not installed", f"run `whippletree harness install {name}`")
    how = launch or harness.facts.launches[0]
    if how not in harness.facts.launches:
        raise ConfigurationError(f"{name} cannot be launched as {how!r}", f"use one of {', '.join(harness.facts.launches)}")
    control = ControlConfig(
        launch="pool" if how == "pool" else "process",
        harness_directory=str(directory or ""),
        deadlines=DeadlineConfig(agent=limit),
        pool=PoolConfig(hosts=1, tenants=2),
    )
    place = Path(tempfile.mkdtemp(prefix="whippletree-check-"))
    try:
        (place / "model").mkdir()
        world = World(harness, name, place, make_renderer(place / "model"), control)
        backend = sandboxes.choose(world.sandbox)  # which tries them, once: not while a gateway serves
        dialect_setting = harness.settings is not None and "dialect" in harness.settings.__struct_fields__
        runs: dict[str, list[Run]] = {}
        for scenario in scenarios(harness.facts, dialect_setting):
            if not only or scenario.name in only:
                progress(scenario.name)
                runs[scenario.name] = await world.run(scenario)
        plain = runs.get("plain", [None])[0]
        return Report(
            harness=harness.name,
            version=harness.version,
            launch=how,
            sandbox=backend.kind,
            facts=checked(harness.facts),
            lines=grade(harness.facts, runs),
            measured=measured(plain),
        )
    finally:
        if keep is not None:
            shutil.copytree(place, keep, dirs_exist_ok=True, symlinks=True)
        shutil.rmtree(place, ignore_errors=True)
