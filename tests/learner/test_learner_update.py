"""whippletree/learner/learner.py and checkpoint.py"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from whippletree.errors import NonFiniteError, StoreError
from whippletree.learner import checkpoint
from whippletree.learner.config import LearnerConfig
from whippletree.learner.learner import Learner
from whippletree.learner.rows import build_row
from whippletree.types import Sample

ADVANTAGES = {"r0": 1.0, "r1": -1.0, "r2": 0.5, "r3": -0.25}
WEIGHTS = {"s0": 0.05, "s1": 0.02, "s2": 0.03, "s3": 0.01}
CONFIG = LearnerConfig(learning_rate=1e-2, warmup_steps=2)


def learner(directory: Path, config: LearnerConfig = CONFIG) -> Learner:
    return Learner(directory, config, temperature=1.0)


def parameters(found: Learner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in found.model.parameters()]


def on_policy(found: Learner, samples: list[Sample]) -> list[Sample]:
    """The samples with the learner's own logprobs as the sampler's."""
    from whippletree.learner.scoring import row_logprobs

    result = []
    for sample in samples:
        with torch.no_grad():
            values = row_logprobs(found.model, build_row([sample], ADVANTAGES, WEIGHTS), 1.0).numpy()
        logprobs = sample.logprobs.copy()
        logprobs[sample.trained] = values
        result.append(Sample(**{**{f: getattr(sample, f) for f in sample.__struct_fields__}, "logprobs": logprobs}))
    return result


def test_packed_and_single_rows_make_the_same_update(small_model: Path, sample_batch: list[Sample]):
    packed, single = learner(small_model), learner(small_model)
    samples = on_policy(packed, sample_batch)
    packed.update([build_row(samples, ADVANTAGES, WEIGHTS)])
    single.update([build_row([sample], ADVANTAGES, WEIGHTS) for sample in samples])
    for a, b in zip(parameters(packed), parameters(single), strict=True):
        assert torch.allclose(a, b, atol=2e-5)


def test_sampler_and_learner_are_compared_on_the_current_version_only(small_model: Path, sample_batch: list[Sample]):
    found = learner(small_model)
    samples = on_policy(found, sample_batch)
    stale = build_row(samples[:1], ADVANTAGES, WEIGHTS)
    stale = dataclasses.replace(stale, versions=torch.where(stale.targets, 7, -1), sampler_logprobs=stale.sampler_logprobs - 1)
    stats = found.update([stale, build_row(samples[1:], ADVANTAGES, WEIGHTS)])
    assert stats.compared_tokens == sum(int(sample.trained.sum()) for sample in samples[1:])
    assert stats.logprob_max_abs_diff < 1e-5
    assert stats.logprob_correlation > 0.99999
    assert stats.ratio_max == pytest.approx(math.e, rel=1e-4)
    assert stats.clip_fraction > 0


def test_nothing_to_compare_is_nan_not_zero(small_model: Path):
    stats = learner(small_model).update([])
    assert math.isnan(stats.logprob_max_abs_diff)
    assert math.isnan(stats.logprob_correlation)


def test_an_update_without_rows_changes_nothing_but_the_version(small_model: Path):
    found = learner(small_model)
    before = parameters(found)
    found.update([])
    assert found.policy_version == 1
    assert all(torch.equal(a, b) for a, b in zip(before, parameters(found), strict=True))


def test_non_finite_rows_stop_the_step_and_are_named(small_model: Path, sample_batch: list[Sample]):
    found = learner(small_model)
    before = parameters(found)
    good = build_row(sample_batch[:1], ADVANTAGES, WEIGHTS)
    bad = build_row(sample_batch[1:2], {"r1": float("nan")}, WEIGHTS)
    with pytest.raises(NonFiniteError, match="s1"):
        found.update([good, bad])
    assert found.policy_version == 0
    assert all(torch.equal(a, b) for a, b in zip(before, parameters(found), strict=True))


def test_the_learning_rate_warms_up(small_model: Path, sample_batch: list[Sample]):
    found = learner(small_model)
    rates = []
    for _ in range(3):
        found.update([build_row(sample_batch, ADVANTAGES, WEIGHTS)])
        rates.append(found.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([5e-3, 1e-2, 1e-2])


def test_a_restored_learner_makes_the_same_next_update(small_model: Path, sample_batch: list[Sample], tmp_path: Path):
    first = learner(small_model)
    rows = [build_row(sample_batch, ADVANTAGES, WEIGHTS)]
    first.update(rows)
    path = checkpoint.save(first, tmp_path, step=1, tokenizer_from=small_model)
    second = learner(small_model)
    assert checkpoint.restore(second, path).step == 1
    assert second.policy_version == 1
    first.update(rows)
    second.update(rows)
    assert all(torch.equal(a, b) for a, b in zip(parameters(first), parameters(second), strict=True))


def test_checkpoints_are_whole_or_absent(small_model: Path, tmp_path: Path):
    found = learner(small_model)
    (tmp_path / "step-0004").mkdir()  # of a writer that died: no state.json
    assert checkpoint.latest(tmp_path) is None
    with pytest.raises(StoreError, match="no whole checkpoint"):
        checkpoint.restore(found, tmp_path / "step-0004")
    for step in (1, 2, 3, 10000):
        checkpoint.save(found, tmp_path, step=step, tokenizer_from=small_model)
    latest = checkpoint.latest(tmp_path)
    assert latest is not None
    assert latest.name == "step-10000"
    checkpoint.prune(tmp_path, keep=2)
    assert [path.name for path in checkpoint.in_order(tmp_path)] == ["step-0001", "step-0004", "step-10000"]


@pytest.mark.parametrize(
    ("steps", "keep", "left"),
    [(4, 5, [1, 2, 3, 4]), (4, 3, [1, 2, 3, 4]), (5, 3, [1, 3, 4, 5]), (3, 1, [1, 3]), (3, 0, [1, 3]), (1, 1, [1])],
)
def test_the_first_and_the_newest_checkpoints_are_kept(tmp_path: Path, steps: int, keep: int, left: list[int]):
    for step in range(1, steps + 1):
        (tmp_path / f"step-{step:04d}").mkdir()
    checkpoint.prune(tmp_path, keep=keep)
    assert [path.name for path in checkpoint.in_order(tmp_path)] == [f"step-{step:04d}" for step in left]


def test_published_weights_keep_only_the_newest_version(small_model: Path, tmp_path: Path):
    found = learner(small_model)
    checkpoint.write_weights(found, tmp_path, tokenizer_from=small_model)
    found.update([])
    update = checkpoint.write_weights(found, tmp_path, tokenizer_from=small_model)
    assert update.policy_version == 1
    assert [path.name for path in tmp_path.iterdir()] == ["version-000001"]
    assert (Path(update.directory) / "model.safetensors").is_file()
