from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from batching_parts import member
from hypothesis import given
from hypothesis import strategies as st

from whippletree.batching import BatchingConfig, GroupMember, Prepared, SampleFacts, check_names, prepare, sweep_stale
from whippletree.batching import config as config_module
from whippletree.batching.config import (
    AdvantageConfig,
    EfficiencyHook,
    FunctionFilter,
    FunctionHook,
    PackingConfig,
    PassRateFilter,
    WeightsConfig,
    ZeroAdvantageFilter,
)
from whippletree.configuration import Config, convert, dump, field_docs
from whippletree.errors import AlignmentError, ConfigurationError

PLAIN = BatchingConfig(advantages=AdvantageConfig(estimator="dr-grpo"))
ROWS = PackingConfig(token_budget=20)


def sample(rollout: str, number: int, tokens: int = 10, trained: int = 4, version: int = -1) -> SampleFacts:
    return SampleFacts(
        sample_id=f"{rollout}/{number}", rollout_id=rollout, tokens=tokens, trained_tokens=trained, oldest_version=version
    )


def planned(prepared: Prepared) -> list[str]:
    return sorted(name for update in prepared.plan.updates for rank in update.ranks for row in rank for name in row.sample_ids)


def test_every_sample_is_planned_or_counted_under_its_first_cause() -> None:
    members = [
        member("a1", 1.0),
        member("a2", 0.0),
        member("a3", None),
        member("b1", 1.0),
        member("b2", 1.0),
        member("c1", 0.0),
        member("c2", 0.5),
        member("c3", 1.0),
    ]
    samples = [
        sample("a1", 0),
        sample("a1", 1, trained=0),
        sample("a2", 0),
        sample("a2", 1, trained=7),
        sample("a3", 0, trained=9),
        sample("b1", 0),
        sample("b2", 0),
        sample("c1", 0),
        sample("c2", 0),
        sample("c3", 0),
    ]
    found = prepare(members, samples, PLAIN, ROWS, stale=["a2/1", "b1/0"])
    assert planned(found) == ["a1/0", "a2/0", "c1/0", "c3/0"]
    assert found.judged.left_out == {"nothing_trained": 1, "stale": 2, "no_vote": 1, "group_dropped": 1, "zero_advantage": 1}
    assert found.judged.left_out_tokens == {
        "nothing_trained": 0,
        "stale": 11,
        "no_vote": 9,
        "group_dropped": 4,
        "zero_advantage": 4,
    }
    assert "a3/0" not in found.judged.weights.per_token
    assert found.judged.weights.rollouts == 7
    every = prepare(members, samples, PLAIN, ROWS, every_row=True)
    assert planned(every) == ["a1/0", "a2/0", "a2/1", "b1/0", "b2/0", "c1/0", "c2/0", "c3/0"]
    assert (every.judged.left_out, every.judged.kept.dropped) == ({"nothing_trained": 1, "no_vote": 1}, ())


def test_shaping_filters_and_updates_come_from_the_configuration() -> None:
    members = [
        member("a1", 1.0, calls=10),
        member("a2", 1.0, calls=40),
        member("b1", 0.0, calls=1),
        member("b2", 0.0, calls=2),
        member("c1", 1.0, calls=50),
        member("c2", 0.0, calls=50),
    ]
    samples = [sample(one.rollout_id, 0) for one in members]
    config = BatchingConfig(
        advantages=AdvantageConfig(estimator="dr-grpo"),
        shaping=(EfficiencyHook(most=0.1, allowance=50),),
        filters=(PassRateFilter(low=0.01, high=1.0), ZeroAdvantageFilter()),
    )
    found = prepare(members, samples, config, PackingConfig(token_budget=16, updates=2), ranks=2)
    assert planned(found) == ["a1/0", "a2/0", "c1/0", "c2/0"]  # the bonus tells the solved group's rollouts apart
    assert found.judged.advantages.values["a1"] == pytest.approx(0.03)
    assert found.judged.kept.counts == {"pass-rate: none_passed": 1}
    assert found.judged.shaping[0].terms == {"a1": pytest.approx(0.08), "a2": pytest.approx(0.02)}
    assert [len(update.rollout_ids) for update in found.plan.updates] == [2, 2]
    assert all(len(update.ranks) == 2 for update in found.plan.updates)
    assert found.judged.weights.total == pytest.approx(2.0)


def test_only_stale_samples_are_swept() -> None:
    samples = [sample("a1", 0, version=10), sample("a2", 0, version=7), sample("a3", 0, version=6), sample("a4", 0)]
    swept = sweep_stale([*samples, sample("a5", 0, trained=0, version=1)], policy_version=11, max_staleness=4)
    assert (swept.sample_ids, swept.wasted_tokens) == (("a3/0",), 4)
    assert sweep_stale(samples, policy_version=11, max_staleness=100).sample_ids == ()


def test_a_sample_of_an_unknown_rollout_is_refused() -> None:
    with pytest.raises(AlignmentError, match="z9/0 is of rollout z9"):
        prepare([member("a1", 1.0)], [sample("z9", 0)], PLAIN, ROWS)


rewards = st.none() | st.sampled_from([0.0, 0.5, 1.0])
members_of = st.lists(st.tuples(st.sampled_from("abc"), rewards, st.integers(0, 3)), max_size=9)


def world(drawn: Sequence[tuple[str, float | None, int]]) -> tuple[list[GroupMember], list[SampleFacts]]:
    members = [member(f"{group}{number}", reward) for number, (group, reward, _) in enumerate(drawn)]
    samples = [
        sample(one.rollout_id, part, tokens=5 + number + part, trained=part)
        for number, (one, (_, _, parts)) in enumerate(zip(members, drawn, strict=True))
        for part in range(parts)
    ]
    return members, samples


@given(drawn=members_of, ranks=st.integers(1, 4), data=st.data())
def test_no_order_changes_anything(drawn: list[Any], ranks: int, data: st.DataObject) -> None:
    members, samples = world(drawn)
    packing = PackingConfig(token_budget=20, updates=2)
    found = prepare(members, samples, PLAIN, packing, ranks=ranks)
    other = prepare(data.draw(st.permutations(members)), data.draw(st.permutations(samples)), PLAIN, packing, ranks=ranks)
    assert other == found
    assert list(found.judged.trained) == planned(found)
    assert len(planned(found)) + sum(found.judged.left_out.values()) == len(samples)
    assert set(planned(found)) <= set(found.judged.weights.per_token)


@given(drawn=members_of, data=st.data())
def test_what_is_dropped_changes_no_advantage_and_no_weight(drawn: list[Any], data: st.DataObject) -> None:
    members, samples = world(drawn)
    names = [one.sample_id for one in samples]
    stale = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    full = prepare(members, samples, msgspec.structs.replace(PLAIN, filters=()), ROWS)
    less = prepare(
        members, samples, msgspec.structs.replace(PLAIN, filters=(PassRateFilter(), ZeroAdvantageFilter())), ROWS, stale=stale
    )
    assert less.judged.advantages == full.judged.advantages
    assert less.judged.weights == full.judged.weights
    assert set(planned(less)) <= set(planned(full)) - set(stale)


@pytest.mark.parametrize(
    "config",
    [
        BatchingConfig(advantages=AdvantageConfig(estimator="no_such_module:f")),
        BatchingConfig(weights=WeightsConfig(mode="no_such_module:f")),
        BatchingConfig(shaping=(FunctionHook(function="no_such_module:f"),)),
        BatchingConfig(filters=(FunctionFilter(function="no_such_module:f"),)),
    ],
)
def test_a_function_that_is_not_there_is_refused_before_the_first_rollout(config: BatchingConfig) -> None:
    check_names(BatchingConfig(shaping=(EfficiencyHook(),)))
    with pytest.raises(ConfigurationError, match="no_such_module:f"):
        check_names(config)


def test_every_setting_is_documented_and_a_configuration_survives_the_run_file() -> None:
    kinds: list[Any] = [BatchingConfig]
    seen = set()
    while kinds:
        kind = kinds.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            seen.add(kind)
            assert set(field_docs(kind)) == set(kind.__struct_fields__), kind
            kinds += [field.type for field in msgspec.structs.fields(kind) if field.type not in seen]
        else:
            kinds += [part for part in getattr(kind, "__args__", ()) if part not in seen]
    shipped = {kind for kind in vars(config_module).values() if isinstance(kind, type) and issubclass(kind, Config)}
    arguments = {config_module.PackingConfig, config_module.CostConfig}  # of functions, in no run file
    assert seen == shipped - {Config} - arguments
    assert all(set(field_docs(kind)) == set(kind.__struct_fields__) for kind in arguments)
    config = BatchingConfig(shaping=(EfficiencyHook(),), filters=(PassRateFilter(),))
    assert convert(BatchingConfig, tomllib.loads(dump(config)), "run.toml") == config
