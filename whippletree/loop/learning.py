"""The learner process: open the record, restore, run the loop, write the summary.

    SIGTERM ─► stop at once, wherever the loop is ─► release the hold, close ─► exit; a resume replays what no checkpoint holds
Invariants (tests/loop/test_learning.py):
- the summary is written last, and says `complete` only when every update was made;
- a loop that is stopped leaves a run that resumes;
- two sources never share a name; one without a share is evaluated and never trained.
"""

from __future__ import annotations

import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType

import msgspec

from whippletree.batching import check_names
from whippletree.control.controller import absent
from whippletree.control.imaging import backing_of
from whippletree.errors import ConfigurationError
from whippletree.files import write_json
from whippletree.gateway.client import GatewayControl
from whippletree.gateway.keys import control_key, load_secret
from whippletree.learner.learner import Learner
from whippletree.learner.ranked import RankedLearner
from whippletree.learner.ranks import Ranks, join
from whippletree.loop import asynchronous, collocated, synchronous
from whippletree.loop.config import RunConfig
from whippletree.loop.engine import connect_engine
from whippletree.loop.evaluation import Heldout
from whippletree.loop.fleet import Fleet
from whippletree.loop.groups import SourceTasks
from whippletree.loop.layout import Layout, Services
from whippletree.loop.metrics import Log, Summary
from whippletree.loop.models import check_family
from whippletree.loop.run import Run
from whippletree.loop.sources import TrailTasks, resolve
from whippletree.loop.teacher import Teacher
from whippletree.loop.teaching import opened_teacher
from whippletree.protocols import Store
from whippletree.store import open_store
from whippletree.tasks.images import HOSTS
from whippletree.types import EngineReport, Struct

LOOPS = {"synchronous": synchronous.train, "collocated": collocated.train, "asynchronous": asynchronous.train}


class Probed(Struct):
    """What the engines were graded when the run began, `engines.json`.

    Example: Probed(engines=(EngineReport(grade="tokens", logprobs="processed", detail="8 tokens agree with their scores"),))
    """

    engines: tuple[EngineReport, ...]


def resolve_sources(config: RunConfig, layout: Layout) -> tuple[list[SourceTasks], list[Heldout]]:
    """Every source's tasks, loaded and checked. Raises TaskError or ConfigurationError."""
    sources: list[SourceTasks] = []
    heldout: list[Heldout] = []
    in_cluster = config.control.launch == "kubernetes"
    backing = HOSTS if in_cluster else backing_of(config.sandbox, config.control.images)
    for section in config.sources:
        if any(source.name == section.name for source in sources):
            raise ConfigurationError(f"two sources are named {section.name}", "give each its own name")
        if isinstance(section.tasks, TrailTasks):
            check_family(config.model, section.tasks.family, section.name)
        source, held = resolve(
            section.name,
            section.tasks,
            section.harness.name,
            section.share,
            layout.directory,
            variables=config.control.variables,
            backing=backing,
        )
        if section.share > 0 and not source.tasks:
            cause = f"source {section.name} has a share of the training groups, and no training tasks"
            raise ConfigurationError(cause, "name their directory as its tasks.train, or set its share to 0")
        if section.share > 0:
            variants = tuple(section.harness.variants)
            sources.append(msgspec.structs.replace(source, curriculum=section.curriculum, variants=variants))
        heldout.extend(held)
    if not sources:
        raise ConfigurationError("no source has a share of the training groups", "give one of them a share above 0")
    return sources, heldout


def learn(config: RunConfig, layout: Layout) -> None:
    """Run the training loop of a run directory to its end; of several ranks, rank 0 runs it and the others follow.

    Raises WhippletreeError where the run must stop.
    """
    check_names(config.batching)
    config.check()
    services = layout.read_services()
    ranks = join(config.learner.ranks) if config.learner.ranks.world > 1 else None
    if ranks is not None and not ranks.leads:
        ranked(config, services, ranks).follow()  # a signal ends it: it waits outside Python
        ranks.leave()
        return
    signal.signal(signal.SIGTERM, _stop)
    tasks = resolve_sources(config, layout)
    learner = one_process(config, services) if ranks is None else ranked(config, services, ranks)
    store = open_store(layout.store, config=msgspec.structs.replace(config.store, durability="power"), instance="learner")
    fleet = Fleet(
        GatewayControl(services.gateway_url, control_key(load_secret(layout.secret))),
        [connect_engine(config.engine, services.engine_url)],
        patience=config.loop.peer_limit,
    )
    try:
        with _teacher(config, layout, services, store) as teacher:
            _run(config, layout, services, store=store, learner=learner, fleet=fleet, tasks=tasks, teacher=teacher)
        learner.close()
        if ranks is not None:
            ranks.leave()
    finally:
        fleet.close()
        store.close()


def _teacher(config: RunConfig, layout: Layout, services: Services, store: Store) -> AbstractContextManager[Teacher | None]:
    if config.teacher is None:
        return nullcontext()
    return opened_teacher(
        config.teacher, store, config.traces, policy=Path(services.model_directory), directory=layout.directory
    )


def _run(
    config: RunConfig,
    layout: Layout,
    services: Services,
    *,
    store: Store,
    learner: Learner,
    fleet: Fleet,
    tasks: tuple[list[SourceTasks], list[Heldout]],
    teacher: Teacher | None,
) -> None:
    """The run from its restart to its summary."""
    sources, heldout = tasks
    run = Run(
        config,
        layout.directory,
        store=store,
        learner=learner,
        fleet=fleet,
        sources=sources,
        heldout=heldout,
        model_directory=Path(services.model_directory),
        weights_directory=layout.weights,
        missing=lambda: fleet.missing() or absent(layout.directory),
        teacher=teacher,
    )
    run.restore()
    write_json(layout.engines, Probed(engines=tuple(fleet.probe(config.sampling.temperature))))
    LOOPS[config.loop.kind](run)
    run.log.to_parquet()
    write_json(layout.summary, summarise(config, services, store, run.log, complete=True))


def one_process(config: RunConfig, services: Services) -> Learner:
    """The learner of a run, alone."""
    return Learner(
        Path(services.model_directory),
        config.learner,
        temperature=config.sampling.temperature,
        run_steps=config.loop.steps * config.learner.updates,
    )


def ranked(config: RunConfig, services: Services, ranks: Ranks) -> RankedLearner:
    """This rank's share of it."""
    return RankedLearner(
        Path(services.model_directory),
        config.learner,
        temperature=config.sampling.temperature,
        run_steps=config.loop.steps * config.learner.updates,
        ranks=ranks,
    )


def _stop(_: int, __: FrameType | None) -> None:
    sys.exit(0)


def summarise(config: RunConfig, services: Services, store: Store, log: Log, *, complete: bool) -> Summary:
    """Fold the record of a run into its summary."""
    steps, evals = log.steps(), log.evals()
    rollouts = store.rollouts()
    calls = sum(len(store.calls(rollout.spec.rollout_id, rollout.attempt)) for rollout in rollouts if rollout.attempt)
    diffs = [line.logprob_max_abs_diff for line in steps if line.logprob_max_abs_diff is not None]
    correlations = [line.logprob_correlation for line in steps if line.logprob_correlation is not None]
    last = max([services.started, *(line.time for line in steps), *(line.time for line in evals)])
    return Summary(
        heldout_before=evals[0].success if evals and evals[0].step == 0 else None,
        heldout_after=evals[-1].success if evals and evals[-1].step == config.loop.steps else None,
        seconds_total=last - services.started,
        logprob_max_abs_diff=max(diffs, default=None),
        logprob_correlation=min(correlations, default=None),
        rollouts=len(rollouts),
        failed_rollouts=sum(rollout.state == "failed" for rollout in rollouts),
        calls=calls,
        tokens_trained=sum(line.tokens_trained for line in steps),
        steps=len(steps),
        seed=config.run.seed,
        isolation=services.isolation,
        loop=config.loop.kind,
        launch=config.control.launch,
        complete=complete,
    )
