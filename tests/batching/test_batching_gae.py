from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.batching import Path, path_advantages
from whippletree.batching.config import AdvantageConfig, GaeConfig
from whippletree.batching.gae import gae
from whippletree.errors import AlignmentError, NonFiniteError

PLAIN = GaeConfig(whiten=False)


def path(
    name: str, values: list[float], trained: list[int], calls: list[int] | None = None, reward: float = 1.0, **more: Any
) -> Path:
    """The first letter of a sample's name is its rollout."""
    return Path(
        sample_id=name,
        rollout_id=name[0],
        values=np.array(values, dtype=np.float64),
        trained=np.array(trained, dtype=bool),
        calls=np.array(calls if calls is not None else [0] * len(values), dtype=np.int32),
        reward=reward,
        **more,
    )


series = st.integers(0, 12).flatmap(
    lambda length: st.tuples(*[st.lists(st.floats(-5, 5), min_size=length, max_size=length) for _ in range(2)])
)


@given(drawn=series, gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_gae_is_the_weighted_sum_of_errors(drawn: tuple[list[float], list[float]], gamma: float, lam: float) -> None:
    rewards, values = map(np.array, drawn)
    following = np.append(values[1:], 0.0) if len(values) else values
    errors = rewards + gamma * following - values
    expected = [
        sum((gamma * lam) ** (later - step) * errors[later] for later in range(step, len(errors)))
        for step in range(len(errors))
    ]
    assert gae(rewards, values, gamma, lam) == pytest.approx(expected, abs=1e-9)


@given(drawn=series, gamma=st.floats(0, 1))
def test_the_two_ends_of_lambda(drawn: tuple[list[float], list[float]], gamma: float) -> None:
    rewards, values = map(np.array, drawn)
    returns = [
        sum(gamma ** (later - step) * rewards[later] for later in range(step, len(rewards))) for step in range(len(rewards))
    ]
    assert gae(rewards, values, gamma, 1.0) == pytest.approx(np.array(returns) - values, abs=1e-9)
    following = np.append(values[1:], 0.0) if len(values) else values
    assert gae(rewards, values, gamma, 0.0) == pytest.approx(rewards + gamma * following - values, abs=1e-12)


def test_steps_are_trained_tokens_and_context_takes_no_part() -> None:
    trained = [0, 0, 1, 1, 0, 0, 0, 1]
    one = path_advantages([path("a0", [9, 9, 0.25, 0.5, 9, 9, 9, 0.75], trained)], GaeConfig(lam=0.0, whiten=False))
    assert one.advantages["a0"].tolist() == [0, 0, 0.25, 0.25, 0, 0, 0, 0.25]
    assert one.returns["a0"].tolist() == [0, 0, 0.5, 0.75, 0, 0, 0, 1.0]
    other = path_advantages(
        [path("a0", [float("nan"), 0.25, 0.5, -7, 0.75], [0, 1, 1, 0, 1])], GaeConfig(lam=0.0, whiten=False)
    )
    assert other.advantages["a0"].tolist() == [0, 0.25, 0.25, 0, 0.25]


def test_a_call_is_one_step_for_all_of_its_tokens() -> None:
    calls = [-1, 1, 1, -1, 4, 4, 4]
    trained = [0, 1, 1, 0, 1, 1, 1]
    settings = GaeConfig(unit="call", lam=0.5, gamma=0.5, whiten=False)
    found = path_advantages([path("a0", [9, 0.5, 3, 9, 0.25, 8, 8], trained, calls)], settings)
    last = 1.0 - 0.25
    first = 0.5 * 0.25 - 0.5 + 0.5 * 0.5 * last
    assert found.advantages["a0"].tolist() == [0, first, first, 0, last, last, last]
    assert found.returns["a0"].tolist() == [0, first + 0.5, first + 0.5, 0, 1, 1, 1]


@pytest.mark.parametrize("unit", ["token", "call"])
def test_rewards_of_single_calls_come_with_their_last_token(unit: Any) -> None:
    calls, trained = [0, 0, 1, 1], [1, 1, 1, 1]
    one = path("a0", [0, 0, 0, 0], trained, calls, reward=1.0, call_rewards={0: 0.5, 1: 0.25, 7: 9.0})
    found = path_advantages([one], GaeConfig(unit=unit, whiten=False))
    assert found.advantages["a0"].tolist() == [1.75, 1.75, 1.25, 1.25]
    decayed = path_advantages([one], GaeConfig(unit="token", gamma=0.5, lam=1.0, whiten=False))
    assert decayed.advantages["a0"].tolist() == [0.40625, 0.8125, 0.625, 1.25]


def test_each_retained_path_is_on_its_own_and_shared_tokens_count_once() -> None:
    """Two leaves share a call of two tokens, which the first path trains; its values decide there, and nowhere else."""
    first = path("a0", [0.5, 0.5, 9, 0.25], [1, 1, 0, 1], [0, 0, -1, 1])
    second = path("a1", [0.5, 0.5, 9, 0.125, 0.5], [0, 0, 0, 1, 1], [0, 0, -1, 2, 2])
    settings = GaeConfig(lam=0.5, whiten=False)
    both = path_advantages([first, second], settings)
    apart = [path_advantages([one], settings) for one in (first, second)]
    for name, alone in zip(("a0", "a1"), apart, strict=True):
        assert both.advantages[name].tolist() == alone.advantages[name].tolist()
    assert both.advantages["a1"][:3].tolist() == [0, 0, 0]
    changed = path("a1", [7, 7, 9, 0.125, 0.5], [0, 0, 0, 1, 1], [0, 0, -1, 2, 2])
    assert path_advantages([first, changed], settings).advantages["a1"].tolist() == both.advantages["a1"].tolist()
    assert sum(int(np.count_nonzero(column)) for column in both.advantages.values()) == 5


paths = st.lists(
    st.lists(st.tuples(st.floats(-3, 3), st.booleans()), max_size=8).map(
        lambda drawn: list(zip(*drawn, strict=True)) or [(), ()]
    ),
    max_size=4,
)


@given(drawn=paths, rewards=st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=4), data=st.data())
def test_whitened_advantages(drawn: list[Any], rewards: list[float], data: st.DataObject) -> None:
    batch = [path(f"a{n}", list(values), list(trained), reward=rewards[n]) for n, (values, trained) in enumerate(drawn)]
    numerics = AdvantageConfig(eps=0.0, min_std=0.0)
    found = path_advantages(batch, GaeConfig(), numerics)
    tokens = np.concatenate([found.advantages[one.sample_id][one.trained] for one in batch] or [np.zeros(0)])
    assert np.isfinite(tokens).all()
    for one in batch:
        assert not found.advantages[one.sample_id][~one.trained].any()
    if tokens.any():
        assert (tokens.mean(), tokens.std()) == (pytest.approx(0.0, abs=1e-6), pytest.approx(1.0, abs=1e-6))
    again = path_advantages(data.draw(st.permutations(batch)), GaeConfig(), numerics)
    assert all(again.advantages[name].tolist() == column.tolist() for name, column in found.advantages.items())


def test_equal_advantages_are_whitened_to_zero() -> None:
    found = path_advantages([path("a0", [0, 0, 0], [1, 1, 0]), path("a1", [0], [1])])
    assert all(not column.any() for column in found.advantages.values())
    assert found.returns["a0"].tolist() == [1, 1, 0]
    assert path_advantages([]).advantages == {}


def test_misaligned_or_non_finite_paths_are_refused_by_name() -> None:
    with pytest.raises(AlignmentError, match="a0 has 1, 2 and 1"):
        path_advantages([path("a0", [0], [1, 1])])
    with pytest.raises(AlignmentError, match="a0 is listed twice"):
        path_advantages([path("a0", [0], [1]), path("a0", [0], [1])])
    with pytest.raises(AlignmentError, match="a0 trains calls out of order"):
        path_advantages([path("a0", [0, 0], [1, 1], [2, 1])])
    for bad in (path("a0", [float("inf")], [1]), path("a0", [0], [1], reward=float("nan"))):
        with pytest.raises(NonFiniteError, match="a0"):
            path_advantages([bad])
