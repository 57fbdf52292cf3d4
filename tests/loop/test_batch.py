"""whippletree/loop/batch.py, over a real store"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from loop_parts import Ending, Turn, play, write_attempt

from whippletree.batching import BatchingConfig, group_advantages
from whippletree.batching.config import AdvantageConfig, EfficiencyHook, PassRateFilter, ZeroAdvantageFilter
from whippletree.errors import AlignmentError
from whippletree.learner.config import LearnerConfig
from whippletree.learner.losses.config import KLConfig, SFTLoss
from whippletree.loop.batch import Batch, build_batch, members_of
from whippletree.store import SqliteStore, open_store
from whippletree.traces import TracesConfig
from whippletree.types import CauseClass, Rollout, RolloutSpec

CONFIG = LearnerConfig(token_budget=40)
ONE_CALL = [Turn((1, 2, 3), (4, 5), prefix_break="first")]
TWO_CALLS = [*ONE_CALL, Turn((6,), (7, 8, 9), extends=0)]
BROKEN = [*ONE_CALL, Turn((30, 31), (7, 8, 9), prefix_break="template")]  # the same five tokens in two samples


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with open_store(tmp_path) as opened:
        yield opened


def spec(name: str) -> RolloutSpec:
    """Rollout "g0-a" is of group "g0"."""
    return RolloutSpec(rollout_id=name, group_id=name[:2], source="s", task_id="t", task_path="/t", harness="h", max_attempts=2)


def finished(store: SqliteStore, told: dict[str, tuple[list[Turn], Ending]]) -> list[Rollout]:
    store.create_rollouts([spec(name) for name in told]).result()
    play(store, lambda of: told[of.rollout_id])
    return [store.rollout(name) for name in told]


def weight_of(batch: Batch, rollout_id: str) -> float:
    """Sum over a rollout's trained tokens in the batch's rows."""
    total = 0.0
    for row in batch.rows:
        owner = {number: name.rsplit(".", 1)[0] for number, name in enumerate(row.sample_ids)}
        for number_of_sample, weight in zip(row.samples.tolist(), row.weights.tolist(), strict=True):
            total += weight if owner[number_of_sample] == rollout_id else 0.0
    return round(total, 6)


def weights_in(batch: Batch) -> set[float]:
    """Of single trained tokens."""
    return {round(weight, 6) for row in batch.rows for weight in row.weights.tolist()}


def trained_rollouts(batch: Batch) -> list[str]:
    return sorted(name.rsplit(".", 1)[0] for row in batch.rows for name in row.sample_ids)


def test_rollouts_without_an_advantage_are_in_no_row_but_count_in_the_weights(store: SqliteStore):
    rollouts = finished(
        store,
        {"g0-a": (TWO_CALLS, 1.0), "g0-b": (ONE_CALL, 0.0), "g1-a": (ONE_CALL, 1.0), "g1-b": (TWO_CALLS, 1.0)},
    )
    batch = build_batch(store, rollouts, CONFIG, policy_version=0)
    assert trained_rollouts(batch) == ["g0-a", "g0-b"]
    assert weight_of(batch, "g0-a") == weight_of(batch, "g0-b") == 1 / 4
    assert (batch.samples, batch.metrics()["groups_without_signal"]) == (4, 1)
    assert weights_in(batch) == {1 / 4 / 5, 1 / 4 / 2}


def test_a_loss_with_a_gradient_everywhere_keeps_rollouts_without_an_advantage(store: SqliteStore):
    rollouts = finished(store, {"g0-a": (TWO_CALLS, 1.0), "g0-b": (ONE_CALL, 1.0)})
    for loss in ({"entropy_bonus": 0.01}, {"kl": KLConfig(coefficient=0.1)}, {"loss": SFTLoss()}):
        batch = build_batch(store, rollouts, LearnerConfig(token_budget=40, **loss), policy_version=0)  # type: ignore[arg-type]
        assert trained_rollouts(batch) == ["g0-a", "g0-b"]
        assert all(float(row.advantages.abs().sum()) == 0.0 for row in batch.rows)
    assert build_batch(store, rollouts, CONFIG, policy_version=0).rows == []


def test_dropping_a_group_changes_no_advantage_of_another(store: SqliteStore):
    rollouts = finished(store, {"g0-a": (ONE_CALL, 1.0), "g0-b": (ONE_CALL, 0.0), "g1-a": (ONE_CALL, 0.5)})
    batch = build_batch(store, rollouts, CONFIG, policy_version=0)
    found = {round(value, 6) for row in batch.rows for value in row.advantages.tolist()}
    expected = group_advantages(members_of(rollouts[:2], {})).values
    assert found == {round(value, 6) for value in expected.values()}
    plain = BatchingConfig(advantages=AdvantageConfig(estimator="dr-grpo"))
    centred = build_batch(store, rollouts, CONFIG, policy_version=0, batching=plain)
    assert {value for row in centred.rows for value in row.advantages.tolist()} == {0.5, -0.5}


def test_a_failed_rollout_has_no_row_no_vote_and_no_weight(store: SqliteStore):
    rollouts = finished(
        store,
        {
            "g0-a": (ONE_CALL, 1.0),
            "g0-b": (TWO_CALLS, 0.0),
            "g0-c": (TWO_CALLS, CauseClass.SANDBOX),
            "g0-d": ([], CauseClass.ENGINE),
        },
    )
    batch = build_batch(store, rollouts, CONFIG, policy_version=0)
    assert trained_rollouts(batch) == ["g0-a", "g0-b"]
    assert weight_of(batch, "g0-a") == weight_of(batch, "g0-b") == 1 / 2
    assert batch.judged.advantages.values == group_advantages(members_of(rollouts[:2], {})).values
    metrics = batch.metrics()
    assert (metrics["rollouts"], metrics["failed"], metrics["reward_mean"]) == (4, 2, 0.5)
    assert batch.causes == {"sandbox": 1, "engine": 1}
    assert (metrics["calls"], metrics["turns_mean"]) == (3, 1.5)


def test_a_rollout_of_two_samples_weighs_like_one_of_one_sample(store: SqliteStore):
    rollouts = finished(store, {"g0-a": (BROKEN, 1.0), "g0-b": (TWO_CALLS, 0.0)})
    batch = build_batch(store, rollouts, CONFIG, policy_version=0)
    assert trained_rollouts(batch) == ["g0-a", "g0-a", "g0-b"]
    assert weight_of(batch, "g0-a") == weight_of(batch, "g0-b") == 1 / 2
    assert weights_in(batch) == {1 / 2 / 5}  # five trained tokens each, however they were split


def test_staleness_and_prefix_breaks_are_counted_over_calls_with_a_reward(store: SqliteStore):
    stale = [Turn((1, 2), (3,), prefix_break="first", version=3), Turn((9,), (4,), prefix_break="compaction", version=5)]
    rollouts = finished(store, {"g0-a": (stale, 1.0), "g0-b": (BROKEN, 0.0), "g0-c": (BROKEN, CauseClass.HARNESS)})
    metrics = build_batch(store, rollouts, CONFIG, policy_version=5).metrics()
    assert metrics["prefix_breaks"] == {"compaction": 1, "template": 1}
    assert (metrics["staleness_mean"], metrics["staleness_max"]) == ((2 + 0 + 5 + 5) / 4, 5)


def test_a_rollout_without_a_trained_token_and_a_low_share_are_alarms(store: SqliteStore):
    silent = [Turn((1, 2, 3), (), prefix_break="first")]
    rollouts = finished(store, {"g0-a": (silent, 1.0), "g0-b": (TWO_CALLS, 0.0), "g0-c": ([], 0.0)})
    batch = build_batch(store, rollouts, CONFIG, policy_version=0)
    assert batch.metrics()["trained_share"] == 1.0
    assert [text.partition(":")[0] for text in batch.alarms] == ["g0-a"]
    assert "nothing sampled (1)" in batch.alarms[0]
    several = finished(store, {f"g{n}-a": (silent, 1.0) for n in range(1, 6)})
    alarms = build_batch(store, several, CONFIG, policy_version=0).alarms
    assert [text.partition(":")[0] for text in alarms] == [
        "batch",
        "g1-a",
        "g2-a",
        "g3-a",
        "and 2 rollouts more without one trained token",
    ]
    nobody = TracesConfig(train_roles=("side",), least_trained_share=0.9)
    (whole, _) = build_batch(store, rollouts[1:], CONFIG, policy_version=0, traces=nobody).alarms
    assert whole.startswith("batch: 2 calls and not one trained token")
    assert "role main is not trained (2)" in whole


def test_shaping_and_filters_of_the_configuration_are_applied_and_recorded(store: SqliteStore):
    rollouts = finished(
        store,
        {
            "g0-a": (TWO_CALLS, 1.0),
            "g0-b": (ONE_CALL, 1.0),
            "g1-a": (TWO_CALLS, 0.0),
            "g1-b": (ONE_CALL, 0.0),
            "g2-a": (ONE_CALL, CauseClass.SANDBOX),
        },
    )
    config = BatchingConfig(
        advantages=AdvantageConfig(estimator="dr-grpo"),
        shaping=(EfficiencyHook(most=0.5, allowance=10), EfficiencyHook(most=0.25, allowance=5, of="sampled_tokens")),
        filters=(PassRateFilter(low=0.1, high=1.0), ZeroAdvantageFilter()),
    )
    batch = build_batch(store, rollouts, CONFIG, policy_version=0, batching=config)
    assert trained_rollouts(batch) == ["g0-a", "g0-b"]  # both solved it; the bonus tells them apart
    terms = {"g0-a": 0.5 * 0.8 + 0.25 * 0.0, "g0-b": 0.5 * 0.9 + 0.25 * 0.6}
    assert batch.judged.advantages.values["g0-b"] == pytest.approx((terms["g0-b"] - terms["g0-a"]) / 2)
    metrics = batch.metrics()
    assert metrics["reward_mean"] == 0.5
    assert metrics["shaping"] == {"efficiency": pytest.approx(sum(terms.values()) / 4)}
    assert metrics["groups_dropped"] == {"pass-rate: none_passed": 1, "pass-rate: no_reward": 1}
    for _ in range(2):  # a step that is made again records nothing twice
        store.append_events(batch.shaping_events(3, 1.0)).result()
    for name, added in terms.items():
        (event,) = [event for event in store.events(name) if event.kind == "shaping"]
        assert event.data == {"step": 3, "terms": {"efficiency": pytest.approx(added)}}
    assert not any(event.kind == "shaping" for event in store.events("g1-a"))


def test_only_the_last_attempts_calls_are_trained(store: SqliteStore):
    store.create_rollouts([spec("g0-a"), spec("g0-b")]).result()
    first, other = store.claim("w", 2).result()
    write_attempt(store, first, TWO_CALLS, CauseClass.HOST_LOST, requeue=True)
    write_attempt(store, other, ONE_CALL, 0.0)
    play(store, lambda _: (ONE_CALL, 1.0))
    batch = build_batch(store, [store.rollout("g0-a"), store.rollout("g0-b")], CONFIG, policy_version=0)
    assert [call.call_id for call in batch.calls] == ["g0-a/2/0", "g0-b/1/0"]
    assert sum(len(row.targets) for row in batch.rows) == 4


def test_a_batch_without_signal_has_no_rows_and_no_made_up_numbers(store: SqliteStore):
    rollouts = finished(store, {"g0-a": (ONE_CALL, 0.0), "g0-b": (ONE_CALL, 0.0), "g1-a": (ONE_CALL, CauseClass.TASK)})
    batch = build_batch(store, rollouts, CONFIG, policy_version=0)
    assert batch.rows == []
    metrics = batch.metrics()
    assert (metrics["groups_without_signal"], metrics["row_fill"]) == (2, None)
    assert metrics["groups_dropped"] == {"zero-advantage: equal_rewards": 1, "zero-advantage: no_reward": 1}
    assert metrics["samples_left_out"] == {"group_dropped": 2}
    assert metrics["alarms"] == ("no rollout has a reward in 1 of 2 groups, e.g. g1",)
    empty = build_batch(store, rollouts[2:], CONFIG, policy_version=0).metrics()
    assert (empty["reward_mean"], empty["turns_mean"], empty["staleness_mean"]) == (None, None, 0.0)


def test_rows_keep_to_the_token_budget(store: SqliteStore):
    rollouts = finished(store, {f"g0-{n}": (TWO_CALLS, float(n % 2)) for n in range(10)})
    end_to_end = LearnerConfig(token_budget=40, packing="rows")
    batch = build_batch(store, rollouts, end_to_end, policy_version=0)
    assert [len(row.sample_ids) for row in batch.rows] == [4, 3, 3]  # nine tokens each, 40 to a row
    assert batch.fill == pytest.approx(90 / 120)


def test_what_samples_share_is_laid_once_unless_told_otherwise(store: SqliteStore):
    rollouts = finished(store, {"g0-a": (TWO_CALLS, 1.0), "g0-b": (ONE_CALL, 0.0)})
    found = {}
    for packing in ("tree", "rows", "single"):
        batch = build_batch(store, rollouts, LearnerConfig(token_budget=40, packing=packing), policy_version=0)
        assert [weight_of(batch, name) for name in ("g0-a", "g0-b")] == [1 / 2, 1 / 2]
        metrics = batch.metrics()
        found[packing] = (len(batch.rows), metrics["row_tokens"])
        assert (metrics["sample_tokens"], metrics["distinct_tokens"]) == (14, 9)
    assert found == {"tree": (1, 9), "rows": (1, 14), "single": (2, 14)}


def test_a_rollout_listed_twice_is_refused(store: SqliteStore):
    rollouts = finished(store, {"g0-a": (ONE_CALL, 1.0)})
    with pytest.raises(AlignmentError, match="g0-a is listed twice"):
        build_batch(store, [*rollouts, *rollouts], CONFIG, policy_version=0)


def test_a_batch_spread_over_updates_keeps_each_rollout_within_one_and_its_weight(store: SqliteStore):
    told = {f"g{n // 2}-{n}": (BROKEN if n % 3 else TWO_CALLS, float(n % 2)) for n in range(6)}
    rollouts = finished(store, told)
    one = build_batch(store, rollouts, CONFIG, policy_version=0)
    batch = build_batch(store, rollouts, LearnerConfig(token_budget=40, updates=4), policy_version=0)
    members = [{name.rsplit(".", 1)[0] for row in rows for name in row.sample_ids} for rows in batch.updates]
    assert sorted(len(names) for names in members) == [1, 1, 2, 2]
    assert sorted(name for names in members for name in names) == sorted(told)
    assert sorted(trained_rollouts(batch)) == sorted(trained_rollouts(one))
    for name in told:  # as large as in one update, four times over: each update is a fourth of the batch
        assert weight_of(batch, name) == pytest.approx(4 * weight_of(one, name), abs=1e-5)
    metrics = batch.metrics()
    assert metrics["sample_tokens"] == one.metrics()["sample_tokens"]
    assert metrics["row_fill"] == pytest.approx(metrics["row_tokens"] / (40 * sum(map(len, batch.updates))))
