"""whippletree/loop/teacher.py: a real engine as teacher, servers that answer in recorded shapes, servers that do not answer"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from engine_parts import embedded_process
from loop_parts import World, by_name, opened_run, play, playing
from run_parts import LOOPS, configuration
from teacher_parts import answering, echoed_scores, vllm_scores

from whippletree.engines.connect import connect
from whippletree.engines.embedded.client import EmbeddedEngine
from whippletree.errors import ConfigurationError, ContextOverflow
from whippletree.learner.config import LearnerConfig
from whippletree.learner.learner import Learner
from whippletree.learner.losses.config import CustomLoss, DistillReverseLoss, PPOLoss
from whippletree.loop.batch import build_batch
from whippletree.loop.config import RunConfig, SamplingSection, TeacherConfig
from whippletree.loop.metrics import Log, StepMetrics
from whippletree.loop.run import Run
from whippletree.loop.teacher import COLUMN, FAILED, Teacher
from whippletree.protocols import Store
from whippletree.store import open_store
from whippletree.traces import TracesConfig, load_trace
from whippletree.types import Rollout, RolloutSpec

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def teacher_url(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real embedded engine with other weights than the policy's."""
    with embedded_process(str(world.other), tmp_path_factory.mktemp("teacher")) as (url, _):
        yield url


def taught_run(url: str, *, steps: int = 1, loop: str = "synchronous", **settings: Any) -> RunConfig:
    plain = configuration(loop, steps=steps)
    learner = msgspec.structs.replace(plain.learner, loss=DistillReverseLoss())
    return msgspec.structs.replace(plain, learner=learner, teacher=TeacherConfig(url=url, **settings))


class Tried(Teacher):
    """Its limit begins once somebody was not there for each rollout, so that this is why it was not scored."""

    def settle(self, rollouts: Iterable[Rollout]) -> None:
        wanted = {rollout.spec.rollout_id: rollout for rollout in rollouts}
        self.look(wanted)
        until = time.monotonic() + 60
        while wanted.keys() - self._why.keys():
            assert time.monotonic() < until, f"not asked for: {wanted.keys() - self._why.keys()}"
            time.sleep(0.01)
        super().settle(wanted.values())


def teacher_of(config: RunConfig, kind: type[Teacher] = Teacher) -> Callable[[Store], Teacher]:
    assert config.teacher is not None
    settings = config.teacher
    return lambda store: kind(connect(settings.kind, settings.url, name="teacher"), store, settings, TracesConfig())


def train(world: World, directory: Path, config: RunConfig, kind: type[Teacher] = Teacher) -> StepMetrics:
    config.check()
    with playing(directory / "store"), opened_run(world, directory, config, taught=teacher_of(config, kind)) as run:
        run.restore()
        LOOPS[config.loop.kind](run)
    return Log(directory).steps()[-1]


@pytest.mark.parametrize("loop", ["synchronous", "collocated", "asynchronous"])
def test_a_real_engine_teaches_in_every_loop_what_the_model_itself_would(
    world: World, tmp_path: Path, teacher_url: str, loop: str
):
    line = train(world, tmp_path / "server", taught_run(teacher_url, loop=loop))
    own = msgspec.structs.replace(taught_run(teacher_url, loop=loop), teacher=None)
    own = msgspec.structs.replace(own, learner=msgspec.structs.replace(own.learner, teacher=str(world.other)))
    with playing(tmp_path / "own" / "store"), opened_run(world, tmp_path / "own", own) as run:
        run.restore()
        LOOPS[loop](run)
    (expected,) = Log(tmp_path / "own").steps()
    assert (line.tokens_trained, line.samples_left_out, line.teacher_failures) == (28, {}, {})
    assert line.loss == pytest.approx(expected.loss, rel=1e-3)
    assert line.grad_norm == pytest.approx(expected.grad_norm, rel=1e-3)
    assert line.learner["teacher_kl"] == pytest.approx(expected.learner["teacher_kl"], rel=1e-3)


def test_a_column_is_the_teachers_logprob_of_each_sampled_token_under_what_was_fed(
    world: World, tmp_path: Path, teacher_url: str
):
    train(world, tmp_path, taught_run(teacher_url))
    model = Learner(world.other, LearnerConfig(), temperature=1.0)
    with open_store(tmp_path / "store") as store:
        for rollout in store.rollouts():
            columns = store.columns(rollout.spec.rollout_id, rollout.attempt, COLUMN)
            nodes = load_trace(store, rollout).nodes
            assert set(columns) == {node.call_id for node in nodes}
            for node in nodes:
                expected = model.score(node.full_ids.tolist())[node.prompt_length - 1 :]
                np.testing.assert_allclose(columns[node.call_id], expected, atol=2e-4)


def logprob_of(token: int) -> float:
    return -1.0 - token / 1000


@pytest.mark.parametrize("kind", ["vllm", "completions", "echo"])
def test_answers_of_other_servers_are_read_in_their_own_shapes(world: World, tmp_path: Path, kind: str):
    asked: list[Any] = []

    def answer(path: str, body: Any) -> tuple[int, Any]:
        asked.append((path, body))
        shape = echoed_scores if kind == "echo" else vllm_scores
        return 200, shape(body["prompt"], logprob_of)

    with answering(answer) as url:
        line = train(world, tmp_path, taught_run(url, kind=kind))
    assert line.teacher_failures == {}
    with open_store(tmp_path / "store") as store:
        for rollout in store.rollouts():
            columns = store.columns(rollout.spec.rollout_id, rollout.attempt, COLUMN)
            for node in load_trace(store, rollout).nodes:
                expected = np.array([logprob_of(int(token)) for token in node.sampled_ids], np.float32)
                np.testing.assert_array_equal(columns[node.call_id], expected)
    assert len(asked) == 4  # one path for each rollout, whole
    assert {path for path, _ in asked} == {"/v1/completions"}
    field = {"echo": ("echo", True)}.get(kind, ("prompt_logprobs", 1))
    assert all(body[field[0]] == field[1] and body["temperature"] == 1.0 for _, body in asked)


def silence(over: threading.Event) -> Callable[[str, Any], tuple[int, Any]]:
    def answer(path: str, body: Any) -> tuple[int, Any]:
        over.wait(30)
        return 500, {}

    return answer


def given_up(directory: Path) -> list[str]:
    with open_store(directory / "store") as store:
        names = [rollout.spec.rollout_id for rollout in store.rollouts()]
        return [event.data["cause"] for name in names for event in store.events(name) if event.kind == FAILED]


def assert_nothing_trained(line: StepMetrics, directory: Path, cause: str) -> None:
    assert line.teacher_failures == {cause: 4}
    assert line.samples_left_out == {"no_teacher": 4}
    assert line.tokens_left_out == {"no_teacher": 28}
    assert line.tokens_trained == 0 and line.grad_norm == 0.0
    assert f"4 rollouts, which are left out of the loss: 4 x {cause}" in "".join(line.alarms)
    assert given_up(directory) == [cause] * 4


def test_a_slow_teacher_is_a_counted_cause_and_never_a_zero(world: World, tmp_path: Path):
    over = threading.Event()
    with answering(silence(over)) as url:
        line = train(world, tmp_path, taught_run(url, kind="vllm", limit=0.3))
        over.set()
    assert_nothing_trained(line, tmp_path, "slow")


def test_a_teacher_that_is_not_there_is_asked_again_until_the_limit(world: World, tmp_path: Path):
    assert_nothing_trained(train(world, tmp_path, taught_run(NOBODY, limit=0.3), Tried), tmp_path, "unavailable")


def test_one_that_refuses_or_answers_nonsense_is_not_asked_again(world: World, tmp_path: Path):
    asked: list[str] = []

    def nonsense(path: str, body: Any) -> tuple[int, Any]:
        asked.append(path)
        reply = vllm_scores(body["prompt"], lambda token: -9999.0)
        return (200, reply) if len(asked) % 2 else (400, {"error": {"message": "no such model"}})

    with answering(nonsense) as url:
        line = train(world, tmp_path, taught_run(url, kind="vllm", limit=20.0))
    assert_nothing_trained(line, tmp_path, "refused")
    assert len(asked) == 4


def test_a_rollout_that_does_not_fit_the_teacher_is_left_out_and_the_others_are_trained(
    world: World, tmp_path: Path, teacher_url: str
):
    first = by_name(RolloutSpec(rollout_id="g00000-m01", group_id="", source="", task_id="", task_path="", harness=""))[0][
        0
    ].new

    class Short(EmbeddedEngine):
        async def score(self, token_ids: Sequence[int]) -> list[float]:
            if tuple(token_ids[: len(first)]) == first:
                raise ContextOverflow("too long for me", "shorten it")
            return await super().score(token_ids)

    config = taught_run(teacher_url)
    settings = config.teacher
    assert settings is not None
    taught = partial(Teacher, Short(teacher_url), config=settings, traces=TracesConfig())
    with opened_run(world, tmp_path, config, taught=taught) as run:
        run.restore()
        run.create_groups(until=2, step=0)
        play(run.store, by_name)
        run.watch.refresh()
        run.update(0, run.collect(0, until=2))
        (line,) = run.log.steps()
    assert line.teacher_failures == {"overflow": 1}
    assert (line.samples_left_out, line.tokens_trained) == ({"no_teacher": 1}, 21)
    assert line.groups_without_signal == 0  # it kept its vote


def test_what_was_given_up_stays_so_when_the_step_is_made_again(world: World, tmp_path: Path, teacher_url: str):
    """The teacher failed, the update was planned, the process died; the next one has a good teacher, and trains the same."""
    failing, good = taught_run(NOBODY, limit=0.2), taught_run(teacher_url)

    def rollouts(run: Run) -> list[Any]:
        return run.store.rollouts()

    with opened_run(world, tmp_path, failing, taught=teacher_of(failing, Tried)) as run:
        run.restore()
        run.create_groups(until=2, step=0)
        play(run.store, by_name)
        run.watch.refresh()
        run.collect(0, until=2)
    with opened_run(world, tmp_path, good, taught=teacher_of(good)) as run:
        run.restore()
        run.watch.refresh()
        assert run.teacher is not None
        run.teacher.settle(rollouts(run))
        batch = build_batch(run.store, rollouts(run), run.config.learner, policy_version=0, taught=True)
        assert batch.rows == []
        assert dict(batch.teacher_failures) == {"unavailable": 4}


def test_scoring_begins_when_a_rollout_is_over_and_does_not_wait_for_its_batch(world: World, tmp_path: Path, teacher_url: str):
    config = taught_run(teacher_url)
    with opened_run(world, tmp_path, config, taught=teacher_of(config)) as run:
        run.restore()
        run.create_groups(until=2, step=0)
        play(run.store, by_name, limit=1)
        run.watch.refresh()
        assert run.teacher is not None
        run.teacher.look(run.watch.rollouts)
        done = [rollout for rollout in run.watch.rollouts.values() if rollout.terminal]
        run.teacher.settle(done)
        assert len(done) == 1
        found = {rollout.spec.rollout_id: run.store.columns(rollout.spec.rollout_id, 1, COLUMN) for rollout in done}
        assert [len(columns) for columns in found.values()] == [2]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sampling": SamplingSection(temperature=0.7)}, "temperature 1"),
        ({"learner": LearnerConfig(loss=PPOLoss())}, "ppo has no use for it"),
        ({"learner": LearnerConfig(loss=DistillReverseLoss(), teacher="/t")}, "both set"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(change: dict[str, Any], told: str):
    config = taught_run(NOBODY)
    config.check()
    msgspec.structs.replace(config, learner=LearnerConfig(loss=CustomLoss(function="m:f"))).check()
    with pytest.raises(ConfigurationError, match=told):
        msgspec.structs.replace(config, **change).check()
    with pytest.raises(ValueError, match="url"):
        TeacherConfig(kind="vllm")
