"""whippletree/loop/run.py and the two loops: a real store, engine process and gateway; only the agent is made up"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from loop_parts import HELDOUT, World, by_name, opened_run, play, playing
from run_parts import STEPS, configuration, train

from whippletree.engines.embedded.client import EmbeddedEngine
from whippletree.errors import DivergedError, StoreError, WeightMismatch, WhippletreeError
from whippletree.learner import checkpoint
from whippletree.learner.learner import Learner
from whippletree.learner.losses.config import KLConfig
from whippletree.loop.config import RunConfig
from whippletree.loop.fleet import Fleet
from whippletree.loop.metrics import Log
from whippletree.loop.run import Run
from whippletree.store import SqliteStore, open_store
from whippletree.types import CauseClass, RolloutSpec, StepRecord, WeightUpdate

TIMES = {"time", "seconds_collect", "seconds_update", "seconds_publish", "replayed", "weight_check_diff"}


def trained(directory: Path) -> tuple[bytes, dict[str, Any]]:
    """Weights and optimiser of the last checkpoint."""
    path = checkpoint.latest(directory / "checkpoints")
    assert path is not None
    assert path.name == f"step-{STEPS:04d}"
    return (path / "model.safetensors").read_bytes(), torch.load(path / "optimizer.pt", weights_only=True)


def records(directory: Path) -> list[StepRecord]:
    with open_store(directory / "store") as store:
        return store.steps()


def lines(directory: Path) -> list[dict[str, Any]]:
    """What the metrics say of each update, without times."""
    return [{k: v for k, v in msgspec.to_builtins(line).items() if k not in TIMES} for line in Log(directory).steps()]


@pytest.fixture(scope="module")
def undisturbed(world: World, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """undisturbed("synchronous"): the directory of a whole run that nothing happened to."""
    made: dict[tuple[str, int], Path] = {}

    def get(kind: str, updates: int = 1) -> Path:
        if (kind, updates) not in made:
            made[kind, updates] = tmp_path_factory.mktemp(kind)
            with playing(made[kind, updates] / "store"):
                train(world, made[kind, updates], configuration(kind, updates=updates))
        return made[kind, updates]

    return get


class Killed(BaseException):
    """The process ends here."""


Place = tuple[Any, str, int, str]  # owner, name of its function, the how manieth call of it, before or after it

PLACES: dict[str, Place] = {
    "collected": (SqliteStore, "plan_step", 2, "before"),
    "planned": (Learner, "update_batch", 2, "before"),
    "updated": (checkpoint, "save", 2, "before"),
    "within the checkpoint": (checkpoint, "copy_tokenizer", 4, "before"),
    "checkpoint written": (checkpoint, "save", 2, "after"),
    "committed": (checkpoint, "prune", 2, "before"),
    "weights written": (checkpoint, "write_weights", 3, "after"),
    "published": (Fleet, "publish", 3, "after"),
    "checked": (Fleet, "check", 3, "after"),
    "last checkpoint written": (checkpoint, "save", STEPS, "after"),
}


def kill_at(place: Place, patch: pytest.MonkeyPatch) -> None:
    """The real function, with death before or after its nth call."""
    owner, name, nth, when = place
    real = getattr(owner, name)
    calls = 0

    def deadly(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and when == "before":
            raise Killed
        result = real(*arguments, **named)
        if calls == nth:
            raise Killed
        return result

    patch.setattr(owner, name, deadly)


def die_and_resume(world: World, directory: Path, config: RunConfig, place: Place) -> None:
    with playing(directory / "store"):
        with pytest.MonkeyPatch.context() as patch:
            kill_at(place, patch)
            with pytest.raises(Killed):
                train(world, directory, config)
        train(world, directory, config)


def assert_same(found: Path, expected: Path) -> None:
    """Same weights and optimiser, bit for bit; each rollout trained once, in the same step; one line per update."""
    (weights, optimizer), (weights_expected, optimizer_expected) = trained(found), trained(expected)
    assert weights == weights_expected
    torch.testing.assert_close(optimizer, optimizer_expected, rtol=0.0, atol=0.0)
    names = [name for record in records(found) for name in record.rollout_ids]
    assert len(set(names)) == len(names) == STEPS * 4
    assert [record.rollout_ids for record in records(found)] == [record.rollout_ids for record in records(expected)]
    assert all(record.committed for record in records(found))
    assert lines(found) == lines(expected)
    assert [line.step for line in Log(found).evals()] == [0, STEPS]


@pytest.mark.parametrize("place", PLACES)
def test_a_run_killed_anywhere_in_an_update_ends_with_the_weights_of_one_that_was_not(
    world: World, tmp_path: Path, undisturbed: Callable[..., Path], place: str
):
    die_and_resume(world, tmp_path, configuration(), PLACES[place])
    assert_same(tmp_path, undisturbed("synchronous"))


@pytest.mark.parametrize("every", [2, STEPS])
def test_updates_since_the_last_checkpoint_are_made_again_from_the_record(
    world: World, tmp_path: Path, undisturbed: Callable[..., Path], every: int
):
    die_and_resume(world, tmp_path, configuration(every=every), (Learner, "update_batch", STEPS, "before"))
    assert_same(tmp_path, undisturbed("synchronous"))
    replayed = [line.step for line in Log(tmp_path).steps() if line.replayed]
    assert replayed == ([2] if every == 2 else [0, 1, 2])
    expected = {2: ["step-0002", "step-0002", "step-0003"], STEPS: ["step-0003"] * 3}
    assert [record.checkpoint for record in records(tmp_path)] == expected[every]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["collocated", "asynchronous"])
def test_the_other_loops_resume_to_the_same_weights_too(
    world: World, tmp_path: Path, undisturbed: Callable[..., Path], kind: str, place: str
):
    """The agent is made up and answers at once and in order, so that these loops are deterministic here."""
    die_and_resume(world, tmp_path, configuration(kind, every=2 if place == "planned" else 1), PLACES[place])
    assert not world.control().status().held
    assert_same(tmp_path, undisturbed(kind))


@pytest.mark.parametrize("kind", ["synchronous", "collocated", "asynchronous"])
def test_a_run_killed_between_two_updates_of_a_batch_trains_each_rollout_once(
    world: World, tmp_path: Path, undisturbed: Callable[..., Path], kind: str
):
    """A checkpoint holds whole batches: the first of the two updates is made again, from the weights before it."""
    die_and_resume(world, tmp_path, configuration(kind, updates=2), (Learner, "_update", 4, "before"))
    assert [line.replayed for line in Log(tmp_path).steps()] == [False, True, False]
    assert_same(tmp_path, undisturbed(kind, 2))


def test_each_update_of_a_batch_is_in_the_metrics(world: World, undisturbed: Callable[..., Path]):
    directory = undisturbed("synchronous", 2)
    found = Log(directory).steps()
    assert [(line.step, line.policy_version, len(line.updates)) for line in found] == [(n, n + 1, 2) for n in range(STEPS)]
    for line in found:
        assert [(update.rollouts, update.tokens_trained) for update in line.updates] == [(2, 14), (2, 14)]
        assert (line.rollouts, line.tokens_trained) == (4, 28)
        assert line.loss == pytest.approx(sum(update.loss for update in line.updates) / 2)
        assert line.grad_norm == max(update.grad_norm for update in line.updates) > 0
        assert line.updates[0].row_fill == pytest.approx(32 / 64)
    assert [path.name for path in (directory / "weights").iterdir()] == [f"version-{STEPS:06d}"]
    assert all(line.updates == () for line in Log(undisturbed("synchronous")).steps())
    assert trained(directory)[0] != trained(undisturbed("synchronous"))[0]
    assert Log(directory).to_parquet().exists()


def test_an_undisturbed_run_learns_and_says_what_it_did(world: World, undisturbed: Callable[..., Path]):
    directory = undisturbed("synchronous")
    assert [record.checkpoint for record in records(directory)] == ["step-0001", "step-0002", "step-0003"]
    found = Log(directory).steps()
    assert [(line.step, line.policy_version, line.replayed) for line in found] == [(n, n + 1, False) for n in range(STEPS)]
    assert all(line.rollouts == 4 and line.calls == 8 and line.tokens_trained == 28 for line in found)
    assert all(line.grad_norm > 0 and line.staleness_max == 0 for line in found)
    assert all(set(line.learner) == {"clipped", "ratio"} for line in found)
    assert all(line.learner["clipped"] == pytest.approx(line.clip_fraction) for line in found)
    assert all(line.weight_check_diff is not None and line.weight_check_diff < 1e-4 for line in found)
    weights = [path.read_bytes() for path in sorted((directory / "checkpoints").glob("step-*/model.safetensors"))]
    assert len(set(weights)) == STEPS
    assert [path.name for path in (directory / "weights").iterdir()] == [f"version-{STEPS:06d}"]


def test_one_update_plans_learns_saves_commits_and_publishes_in_this_order(world: World, tmp_path: Path):
    seen: list[str] = []

    def tell(owner: Any, name: str, patch: pytest.MonkeyPatch) -> None:
        real = getattr(owner, name)
        patch.setattr(owner, name, lambda *a, **k: (seen.append(name), real(*a, **k))[1])

    with opened_run(world, tmp_path, configuration()) as run, pytest.MonkeyPatch.context() as patch:
        run.restore()
        run.create_groups(until=2, step=0)
        play(run.store, by_name)
        run.watch.refresh()
        for owner, name in (
            (SqliteStore, "plan_step"), (Learner, "update_batch"), (checkpoint, "save"), (SqliteStore, "commit_step"),
            (Fleet, "publish"), (Fleet, "check"),
        ):  # fmt: skip
            tell(owner, name, patch)
        run.update(0, run.ready_groups())
        assert seen == ["plan_step", "update_batch", "save", "commit_step", "publish", "check"]
        assert [status.policy_version for status in run.fleet.statuses()] == [1]


def ready(run: Run, script: Any = by_name, groups: int = 2) -> None:
    """Restored, with groups that are complete."""
    run.restore()
    run.create_groups(until=run.progress().created + groups, step=run.step)
    play(run.store, script)
    run.watch.refresh()


class Sloppy(EmbeddedEngine):
    """A server that says yes to new weights and goes on serving others."""

    serves: Path

    async def update_weights(self, update: WeightUpdate) -> None:
        wrong = update.policy_version > 0
        await super().update_weights(msgspec.structs.replace(update, directory=str(self.serves)) if wrong else update)


def test_an_engine_that_does_not_serve_what_was_trained_stops_the_run(world: World, tmp_path: Path):
    sloppy = Sloppy(world.engine_url)
    sloppy.serves = world.other
    with opened_run(world, tmp_path, configuration(), engine=sloppy) as run:
        ready(run)
        with pytest.raises(WeightMismatch, match="does not serve the learner's weights"):
            run.update(0, run.ready_groups())
    with opened_run(world, tmp_path, configuration()) as run:  # with a better engine: the update is kept, not made again
        run.restore()
        assert (run.step, run.learner.policy_version) == (1, 1)
        assert [status.policy_version for status in run.fleet.statuses()] == [1]


def test_too_many_failures_stop_the_run_with_their_causes_and_a_resumed_one_goes_on(world: World, tmp_path: Path):
    def failing(spec: RolloutSpec) -> Any:
        cause = {"00": CauseClass.SANDBOX, "01": CauseClass.ENGINE}.get(spec.rollout_id[-2:])
        return (by_name(spec)[0], cause) if spec.group_id == "g00000" and cause else by_name(spec)

    config = configuration(max_failed_share=0.4)
    with opened_run(world, tmp_path, config) as run:
        ready(run, failing)
        with pytest.raises(WhippletreeError, match="2 of 4 rollouts failed: 1 x engine, 1 x sandbox") as raised:
            run.update(0, run.ready_groups())
        assert "; one of them (sandbox): " in raised.value.cause
        assert "--resume" in raised.value.next_step
        assert run.learner.policy_version == 0
    with opened_run(world, tmp_path, config) as run:
        run.restore()
        assert run.step == 1
        ready(run)
        run.update(1, run.ready_groups())
        assert [(line.rollouts, line.failed) for line in run.log.steps()] == [(4, 2), (4, 0)]


def test_a_share_of_failures_within_the_limit_is_trained_around(world: World, tmp_path: Path):
    def failing(spec: RolloutSpec) -> Any:
        return (by_name(spec)[0], CauseClass.VERIFIER) if spec.rollout_id == "g00000-m00" else by_name(spec)

    with opened_run(world, tmp_path, configuration(max_failed_share=0.25)) as run:
        ready(run, failing)
        run.update(0, run.ready_groups())
        line = run.log.steps()[0]
        assert (line.failed, line.groups_without_signal, line.reward_mean) == (1, 1, pytest.approx(2 / 3))


def test_a_hold_of_a_dead_learner_is_released_at_restore(world: World, tmp_path: Path):
    world.control().hold()
    with opened_run(world, tmp_path, configuration()) as run:
        run.restore()
    assert not world.control().status().held


def test_a_failing_update_lets_calls_through_again(world: World, tmp_path: Path):
    with opened_run(world, tmp_path, configuration()) as run:
        ready(run)
        run.store.release([rollout.spec.rollout_id for rollout in run.store.rollouts()])
        with pytest.raises(StoreError, match="released"), run.held():
            assert world.control().status().held
            run.update(0, run.ready_groups())
        assert not world.control().status().held


def test_a_policy_too_far_from_its_reference_is_neither_saved_nor_published(world: World, tmp_path: Path):
    learner = msgspec.structs.replace(configuration().learner, kl=KLConfig(stop_above=1e-7))
    with opened_run(world, tmp_path, msgspec.structs.replace(configuration(), learner=learner)) as run:
        ready(run)
        run.update(0, run.ready_groups())  # still the reference itself
        run.create_groups(until=4, step=1)
        play(run.store, by_name)
        run.watch.refresh()
        with pytest.raises(DivergedError, match=r"learner\.kl\.stop_above"):
            run.update(1, run.ready_groups())
        assert [path.name for path in checkpoint.in_order(tmp_path / "checkpoints")] == ["step-0001"]
        assert [status.policy_version for status in run.fleet.statuses()] == [run.learner.policy_version] == [1]
        assert Log(tmp_path).steps()[0].learner["reference_kl"] < 1e-7


def test_a_restarted_run_makes_no_group_twice(world: World, tmp_path: Path):
    with opened_run(world, tmp_path, configuration()) as run:
        run.create_groups(until=3, step=0)
        before = run.store.rollouts()
    with opened_run(world, tmp_path, configuration()) as run:
        run.create_groups(until=3, step=0)
        assert run.store.rollouts() == before
        run.create_groups(until=4, step=0)
        assert sorted({rollout.spec.group_id for rollout in run.store.rollouts()}) == [f"g{n:05d}" for n in range(4)]


def test_fewer_groups_in_flight_than_an_update_needs_do_not_starve_it(world: World, tmp_path: Path):
    with playing(tmp_path / "store"):
        train(world, tmp_path, configuration("collocated", steps=1, groups_in_flight=1))
    assert [line.rollouts for line in Log(tmp_path).steps()] == [4]


def test_an_evaluation_that_has_its_line_is_not_made_again(world: World, tmp_path: Path):
    with playing(tmp_path / "store"), opened_run(world, tmp_path, configuration(eval_every=2), heldout=HELDOUT) as run:
        for step in (0, 1, 2, 2, 0):
            run.evaluate_if_due(step)
        assert [(line.step, line.valid) for line in run.log.evals()] == [(0, 2), (2, 2)]
        assert len((tmp_path / "eval.jsonl").read_bytes().splitlines()) == 2
        assert {rollout.spec.purpose for rollout in run.store.rollouts()} == {"eval"}
        assert run.progress().created == 0


def test_D17_a_checkpoint_without_the_record_of_its_rollouts_is_an_error_that_names_it(world: World, tmp_path: Path):
    """The weights are there and the record is not: going on would take the data from the start again."""
    with playing(tmp_path / "store"), pytest.MonkeyPatch.context() as patch:
        kill_at((Learner, "update_batch", STEPS, "before"), patch)
        with pytest.raises(Killed):
            train(world, tmp_path, configuration())
    kept = records(tmp_path)
    shutil.rmtree(tmp_path / "store")
    with (
        pytest.raises(StoreError, match=r"step-0002 holds 2 updates.*store\) knows nothing of update 0 and 1 others") as raised,
        playing(tmp_path / "store"),
    ):
        train(world, tmp_path, configuration())
    assert "put the record back" in raised.value.next_step
    assert len(kept) == STEPS and records(tmp_path) == []  # nothing was begun


def test_a_run_whose_last_checkpoint_is_damaged_goes_on_from_the_one_before(
    world: World, tmp_path: Path, undisturbed: Callable[..., Path], caplog: pytest.LogCaptureFixture
):
    with playing(tmp_path / "store"):
        with pytest.MonkeyPatch.context() as patch:
            kill_at(PLACES["last checkpoint written"], patch)
            with pytest.raises(Killed):
                train(world, tmp_path, configuration())
        damaged = tmp_path / "checkpoints" / f"step-{STEPS:04d}" / "optimizer.pt"
        damaged.write_bytes(damaged.read_bytes()[:-7])
        train(world, tmp_path, configuration())
    assert f"step-{STEPS:04d}/optimizer.pt is damaged" in caplog.text
    assert_same(tmp_path, undisturbed("synchronous"))
