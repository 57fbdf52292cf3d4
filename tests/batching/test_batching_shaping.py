from __future__ import annotations

import math
import sys
import types
from typing import Any

import numpy as np
import pytest
from batching_parts import member
from hypothesis import given
from hypothesis import strategies as st

from whippletree.batching import GroupMember, group_advantages, keep_groups, shape_rewards
from whippletree.batching.config import (
    BatchingConfig,
    ClipHook,
    EfficiencyHook,
    FunctionHook,
    HookConfig,
    LengthHook,
    OverlongHook,
    PassRateFilter,
)
from whippletree.batching.shaping import RewardFacts
from whippletree.configuration import convert, dump
from whippletree.errors import AlignmentError, ConfigurationError, NonFiniteError


def rewards(members: list[GroupMember], *hooks: HookConfig) -> list[float | None]:
    return [shaped.reward for shaped in shape_rewards(members, hooks).members]


def test_the_length_bonus_goes_to_the_shorter_correct_ones_of_each_group() -> None:
    members = [
        member("a1", 1.0, sampled_tokens=100),
        member("a2", 1.0, sampled_tokens=300),
        member("a3", 1.0, sampled_tokens=200),
        member("a4", 0.0, sampled_tokens=1),
        member("b1", 1.0, sampled_tokens=900),
        member("b2", 0.0, sampled_tokens=90),
    ]
    assert rewards(members, LengthHook(most=0.2)) == [1.2, 1.0, 1.1, 0.0, 1.0, 0.0]
    calls = [member("a1", 1.0, calls=3, sampled_tokens=1), member("a2", 1.0, calls=1, sampled_tokens=9)]
    assert rewards(calls, LengthHook(most=0.5, of="calls")) == [1.0, 1.5]


def test_the_efficiency_bonus_is_what_is_left_of_the_allowance() -> None:
    members = [
        member("a1", 1.0, calls=10),
        member("a2", 1.0, calls=50),
        member("a3", 1.0, calls=80),
        member("a4", 0.9, calls=1),
    ]
    assert rewards(members, EfficiencyHook(most=0.1, allowance=50)) == [1.08, 1.0, 1.0, 0.9]


def test_the_overlong_penalty_grows_over_the_margin() -> None:
    """DAPO, Eq. 13, with L_max 100 and L_cache 20."""
    members = [member(f"a{n}", 1.0, longest_call=tokens) for n, tokens in enumerate((10, 80, 85, 90, 100, 500))]
    assert rewards(members, OverlongHook(limit=100, margin=20)) == [1.0, 1.0, 0.75, 0.5, 0.0, 0.0]
    assert rewards(members, OverlongHook(limit=100, margin=20, most=0.5))[4:] == [0.5, 0.5]


def test_hooks_are_applied_in_the_order_of_the_configuration_and_recorded() -> None:
    members = [member("a1", 1.0, calls=0), member("a2", 0.0, calls=0), member("a3", None)]
    bonus, clip = EfficiencyHook(most=0.5), ClipHook(low=0.1, high=1.0)
    assert rewards(members, bonus, clip) == [1.0, 0.1, None]
    assert rewards(members, clip, bonus) == [1.5, 0.1, None]
    records = shape_rewards(members, [bonus, clip]).records
    assert [(record.hook, record.terms) for record in records] == [
        ("efficiency", {"a1": 0.5}),
        ("clip", {"a1": -0.5, "a2": 0.1}),
    ]
    assert (records[0].mean_before, records[0].mean_after, records[1].mean_after) == (0.5, 0.75, 0.55)


def test_the_outcome_survives_and_decides_what_is_correct() -> None:
    members = [member("a1", 1.0, calls=0, longest_call=999), member("a2", 0.0, calls=0, longest_call=0)]
    shaped = shape_rewards(members, [OverlongHook(limit=9, margin=9), EfficiencyHook(most=0.1)])
    assert [(one.reward, one.outcome) for one in shaped.members] == [(0.1, 1.0), (0.0, 0.0)]  # penalised, yet correct
    again = shape_rewards(shaped.members, [ClipHook(low=0.5)])
    assert [one.outcome for one in again.members] == [1.0, 0.0]
    found = group_advantages(again.members)
    assert found.groups[0].passed == 1
    assert keep_groups(found, [PassRateFilter()]).group_ids == ("a",)


def test_a_lower_bar_for_passing() -> None:
    members = [member("a1", 0.6, calls=0)]
    assert shape_rewards(members, [EfficiencyHook()], passing=0.5).members[0].reward == 0.7
    assert shape_rewards(members, [EfficiencyHook()]).members[0].reward == 0.6


def test_rollouts_without_a_usable_reward_are_seen_by_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []

    def watch(values: np.ndarray, facts: RewardFacts, settings: FunctionHook) -> np.ndarray:
        seen.append(facts.rollout_ids)
        return values + settings.settings["add"]

    module = types.ModuleType("own_hooks")
    module.__dict__.update(
        watch=watch, short=lambda values, facts, settings: values[1:], bad=lambda values, facts, settings: values / 0.0 + 1
    )
    monkeypatch.setitem(sys.modules, "own_hooks", module)
    members = [member("a1", 1.0), member("a2", None), member("b1", math.nan), member("b2", 0.0)]
    hook = FunctionHook(function="own_hooks:watch", settings={"add": 0.5})
    shaped = shape_rewards(members, [hook, ClipHook(high=5.0)])
    assert seen == [("a1", "b2")]
    assert [one.reward for one in shaped.members if one.rollout_id != "b1"] == [1.5, None, 0.5]
    assert shaped.members[2] is members[2] and shaped.members[1] is members[1]
    with pytest.raises(AlignmentError, match="own_hooks:short"):
        shape_rewards(members, [FunctionHook(function="own_hooks:short")])
    with np.errstate(all="ignore"), pytest.raises(NonFiniteError, match=r"own_hooks:bad.*a1"):
        shape_rewards(members, [FunctionHook(function="own_hooks:bad")])
    with pytest.raises(ConfigurationError, match=r"shaping hook 'own_hooks:other'.*define it in own_hooks"):
        shape_rewards(members, [FunctionHook(function="own_hooks:other")])


hooks = st.lists(
    st.builds(LengthHook, most=st.floats(0, 1), of=st.sampled_from(["sampled_tokens", "calls"]))
    | st.builds(EfficiencyHook, most=st.floats(0, 1), allowance=st.integers(1, 50))
    | st.builds(OverlongHook, limit=st.integers(20, 40), margin=st.integers(1, 20))
    | st.builds(ClipHook, low=st.floats(-1, 0), high=st.floats(0, 1)),
    max_size=4,
)
batches = st.lists(
    st.builds(
        lambda group, reward, tokens, calls: (group, reward, tokens, calls),
        st.sampled_from("abc"),
        st.none() | st.sampled_from([0.0, 0.5, 1.0]),
        st.integers(0, 60),
        st.integers(0, 60),
    ),
    max_size=8,
)


def batch(drawn: list[Any]) -> list[GroupMember]:
    return [
        member(f"{group}{number}", reward, sampled_tokens=tokens, longest_call=tokens, calls=calls)
        for number, (group, reward, tokens, calls) in enumerate(drawn)
    ]


@given(drawn=batches, chain=hooks, data=st.data())
def test_terms_sum_to_the_change_in_every_order(drawn: list[Any], chain: list[HookConfig], data: st.DataObject) -> None:
    members = batch(drawn)
    shaped = shape_rewards(members, chain)
    for before, after in zip(members, shaped.members, strict=True):
        assert (before.reward is None) == (after.reward is None)
        if before.reward is not None and after.reward is not None:
            terms = [record.terms.get(before.rollout_id, 0.0) for record in shaped.records]
            assert before.reward + math.fsum(terms) == pytest.approx(after.reward, abs=1e-12)
            assert after.outcome == before.reward
    shuffled = shape_rewards(data.draw(st.permutations(members)), chain)
    by_name = {one.rollout_id: one for one in shuffled.members}
    assert [by_name[one.rollout_id] for one in members] == list(shaped.members)
    assert shuffled.records == shaped.records


@given(drawn=batches, most=st.floats(0, 1))
def test_the_bonuses_never_pay_a_wrong_answer_nor_cost_a_correct_one(drawn: list[Any], most: float) -> None:
    members = batch(drawn)
    for hook in (LengthHook(most=most), EfficiencyHook(most=most)):
        for before, after in zip(members, shape_rewards(members, [hook]).members, strict=True):
            if before.reward is not None and after.reward is not None:
                gain = after.reward - before.reward
                assert gain == 0.0 if before.reward < 1.0 else -1e-15 <= gain <= most + 1e-15


def test_the_configuration_lists_hooks_by_kind() -> None:
    data = {"shaping": [{"kind": "overlong", "limit": 100, "margin": 20}, {"kind": "clip", "low": 0.0}]}
    config = convert(BatchingConfig, data, "run.toml")
    assert config.shaping == (OverlongHook(limit=100, margin=20), ClipHook(low=0.0))
    assert 'kind = "overlong"' in dump(config)
    for bad, message in (
        ({"kind": "overlog"}, r"did you mean overlong\?"),
        ({"kind": "clip", "hihg": 1.0}, r"did you mean shaping.0.high\?"),
        ({"kind": "clip", "low": 2.0}, "above high"),
        ({"kind": "overlong", "limit": 10, "margin": 20}, "larger than the limit"),
        ({"kind": "efficiency", "allowance": 0}, "allowance"),
        ({"kind": "clip", "high": math.inf}, "finite"),
        ({"kind": "function"}, 'write it as "module:function"'),
        ({"kind": "function", "function": "clip"}, r'function is .clip.; write it as "module:function"'),
    ):
        with pytest.raises(ConfigurationError, match=message):
            convert(BatchingConfig, {"shaping": [bad]}, "run.toml")
