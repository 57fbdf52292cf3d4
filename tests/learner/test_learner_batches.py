"""whippletree/learner/learner.py: several updates of one batch"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from learner_parts import ADVANTAGES, WEIGHTS, make_learner, on_policy, parameters, same

from whippletree.errors import NonFiniteError
from whippletree.learner import checkpoint
from whippletree.learner.learner import Learner
from whippletree.learner.rows import Row, build_row
from whippletree.learner.undo import Undo
from whippletree.types import Sample

CLIPPED = {"loss": {"name": "ppo", "clip_low": 0.01, "clip_high": 0.01}}


def two_updates(samples: list[Sample]) -> list[list[Row]]:
    return [[build_row(samples[:2], ADVANTAGES, WEIGHTS)], [build_row(samples[2:], ADVANTAGES, WEIGHTS)]]


def rates(found: Learner) -> list[float]:
    """Filled with the learning rate of each step."""
    seen: list[float] = []
    found.optimizer.register_step_pre_hook(lambda *_: seen.append(found.optimizer.param_groups[0]["lr"]))
    return seen


def test_they_are_what_as_many_batches_of_one_would_be_under_one_version(small_model: Path, sample_batch: list[Sample]):
    together, apart = (make_learner(small_model, updates=updates, **CLIPPED) for updates in (2, 1))
    updates = two_updates(on_policy(together, sample_batch))
    found = together.update_batch(updates)
    expected = [apart.update(rows) for rows in updates]
    assert same(parameters(together), parameters(apart))
    assert (together.policy_version, apart.policy_version) == (1, 2)
    assert [stats.loss for stats in found.updates] == [stats.loss for stats in expected]
    assert found.whole.tokens == sum(stats.tokens for stats in expected)
    assert found.whole.loss == pytest.approx(sum(stats.loss for stats in expected) / 2)
    assert found.whole.grad_norm == max(stats.grad_norm for stats in expected)
    seen = sum(stats.tokens * stats.clip_fraction for stats in expected)
    assert found.whole.clip_fraction == pytest.approx(seen / found.whole.tokens)
    assert found.updates[1].clip_fraction > 0


def test_ratios_of_later_updates_are_to_the_weights_before_the_first(small_model: Path, sample_batch: list[Sample]):
    found, given = (make_learner(small_model, updates=2, old_logprobs="learner", **CLIPPED) for _ in range(2))
    first, second = two_updates(sample_batch)
    before = given.logprobs(second)[0]
    stats = found.update_batch([first, second])
    assert stats.updates[0].metrics["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert abs(stats.updates[1].metrics["ratio"] - 1.0) > 1e-4
    given.update_batch([first, [dataclasses.replace(second[0], proximal_logprobs=before)]])
    for a, b in zip(parameters(found), parameters(given), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_only_the_first_compares_sampler_and_learner(small_model: Path, sample_batch: list[Sample]):
    found = make_learner(small_model, updates=2)
    updates = two_updates(on_policy(found, sample_batch))
    stats = found.update_batch(updates)
    assert [one.compared_tokens for one in stats.updates] == [len(updates[0][0].targets), 0]
    assert stats.whole.compared_tokens == len(updates[0][0].targets)
    assert stats.whole.logprob_max_abs_diff < 1e-5


def test_warm_up_and_schedule_count_updates(small_model: Path, sample_batch: list[Sample], tmp_path: Path):
    settings = {"updates": 2, "warmup_steps": 2, "schedule": "linear"}
    found = make_learner(small_model, run_steps=6, **settings)
    seen, updates = rates(found), two_updates(sample_batch)
    found.update_batch(updates)
    path = checkpoint.save(found, tmp_path, step=1, tokenizer_from=small_model)
    resumed = make_learner(small_model, run_steps=6, **settings)
    checkpoint.restore(resumed, path)
    seen_after = rates(resumed)
    for _ in range(2):
        resumed.update_batch(updates)
    assert [rate / 1e-2 for rate in [*seen, *seen_after]] == pytest.approx([0.5, 1.0, 0.75, 0.5, 0.25, 0.0])


def test_a_failure_in_a_later_one_leaves_everything_as_it_was_before_the_first(small_model: Path, sample_batch: list[Sample]):
    found = make_learner(small_model, updates=2)
    before = parameters(found)
    (good,), (bad,) = two_updates(sample_batch)
    advantages = bad.advantages.clone()
    advantages[0] = math.nan
    steps = rates(found)
    with pytest.raises(NonFiniteError, match=r"^advantages nan at token"):
        found.update_batch([[good], [dataclasses.replace(bad, advantages=advantages)]])
    assert len(steps) == 1  # the first was made
    assert same(before, parameters(found))
    assert not found.optimizer.state_dict()["state"]
    assert found.policy_version == 0


def test_one_without_rows_among_them_changes_nothing(small_model: Path, sample_batch: list[Sample]):
    found, other = (make_learner(small_model, updates=3) for _ in range(2))
    first, second = two_updates(sample_batch)
    stats = found.update_batch([first, [], second])
    assert [one.tokens > 0 for one in stats.updates] == [True, False, True]
    other.update_batch([first, second, []])
    assert found.policy_version == other.policy_version == 1
    assert math.isfinite(stats.whole.loss)


def test_a_copy_goes_back_to_policy_and_critic(small_model: Path):
    found = make_learner(small_model, critic={"kind": "head"})
    assert found.critic is not None
    held = [*found.parameters, *found.critic.parameters]
    before, undo = [parameter.detach().clone() for parameter in held], Undo(found.parameters, found.optimizer, found.critic)
    with torch.no_grad():
        for parameter in held:
            parameter.add_(1.0)
    undo.restore()
    assert all(torch.equal(old, new) for old, new in zip(before, held, strict=True))
