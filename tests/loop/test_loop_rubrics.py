"""What judges did for a batch, in numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from whippletree.control.config import ControlConfig
from whippletree.control.rubrics.config import Criterion, RubricConfig
from whippletree.engines.config import EmbeddedConfig, HostedConfig
from whippletree.errors import ConfigurationError
from whippletree.loop.config import RunConfig, SourceSection
from whippletree.loop.grid.config import GridConfig, HarnessChoice, ModelSection, SourceChoice, run_config
from whippletree.loop.metrics import RubricMetrics
from whippletree.loop.models import TinyModel
from whippletree.loop.rubrics import rubric_alarms, rubric_metrics
from whippletree.loop.sources import TrailTasks
from whippletree.protocols import AttemptOutcome
from whippletree.store import open_store
from whippletree.types import Attempt, Cause, CauseClass, RolloutSpec, RubricScore, VerifierResult

MUTE = RubricScore(name="style", problem="down")


def given(score: float, *requests: str, cached: bool = False) -> RubricScore:
    return RubricScore(name="style", score=score, requests=requests, cached=cached)


def test_means_are_over_scores_and_shared_answers_are_counted_once(tmp_path: Path) -> None:
    rubrics = [given(0.25, "a", "b"), given(0.75, "a", "b"), given(0.5, "c"), given(0.5, "c", cached=True), MUTE, None]
    names = [f"r{number}" for number in range(len(rubrics))]
    with open_store(tmp_path) as store:
        store.create_rollouts(
            [
                RolloutSpec(rollout_id=name, group_id="g", source="s", task_id="t", task_path="/t", harness="h")
                for name in [*names, "queuing"]
            ]
        ).result()
        store.claim("w", len(names)).result()
        for name, score in zip(names, rubrics, strict=True):
            failed = Cause(cause=CauseClass.RUBRIC, phase="rubric", message="down") if score is MUTE else None
            result = VerifierResult(reward=None if failed else 1.0, cause=failed, rubrics=(score,) if score else ())
            attempt = Attempt(rollout_id=name, attempt=1, started=0.0, result=result, cause=failed)
            store.finish(AttemptOutcome(attempt=attempt)).result()
        found = rubric_metrics(store, store.rollouts())
    assert found == {"style": RubricMetrics(mean=0.5, scored=4, failed=1, asked=3, cached=1)}
    assert rubric_alarms(found) == ("rubric style gave 1 rollouts no score",)


def test_a_mean_of_nothing_is_null(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        spec = RolloutSpec(rollout_id="r", group_id="g", source="s", task_id="t", task_path="/t", harness="h")
        store.create_rollouts([spec]).result()
        store.claim("w", 1).result()
        cause = Cause(cause=CauseClass.RUBRIC, phase="rubric", message="down")
        result = VerifierResult(reward=None, cause=cause, rubrics=(MUTE,))
        store.finish(AttemptOutcome(attempt=Attempt(rollout_id="r", attempt=1, started=0.0, result=result))).result()
        found = rubric_metrics(store, store.rollouts())
    assert found["style"].mean is None and found["style"].failed == 1


def rubric(*sources: str) -> RubricConfig:
    judge = HostedConfig(base_url="http://127.0.0.1:1/v1", model="m")
    return RubricConfig(name="style", judge=judge, criteria=(Criterion(name="good", text="x"),), sources=sources)


def test_a_source_that_is_not_there_is_refused_in_run_and_grid() -> None:
    control = ControlConfig(rubrics=(rubric("trial"),))
    run = RunConfig(sources=[SourceSection(name="trail", tasks=TrailTasks())], control=control)
    grid = GridConfig(
        models=[ModelSection(name="m", model=TinyModel(), engine=EmbeddedConfig())],
        harnesses=[HarnessChoice(name="h")],
        sources=[SourceChoice(name="trail", tasks=TrailTasks())],
        control=control,
    )
    for config in (run, grid):
        with pytest.raises(ConfigurationError, match=r"did you mean trail\?"):
            config.check()


def test_a_grids_rubric_is_for_its_source_in_every_harness() -> None:
    grid = GridConfig(
        models=[ModelSection(name="m", model=TinyModel())],
        harnesses=[HarnessChoice(name="a"), HarnessChoice(name="b")],
        sources=[SourceChoice(name="x", tasks=TrailTasks()), SourceChoice(name="y", tasks=TrailTasks())],
        control=ControlConfig(rubrics=(rubric("x"),)),
    )
    control = run_config(grid, grid.models[0]).control
    assert [control.rubrics_of(source) for source in ("x.a", "x.b", "y.a")] == [("style",), ("style",), ()]
