"""whippletree/learner/learner.py and checkpoint.py"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from learner_parts import ADVANTAGES, WEIGHTS, make_learner, on_policy, parameters, same

from whippletree.errors import DivergedError, NonFiniteError, StoreError
from whippletree.learner import checkpoint
from whippletree.learner.rows import build_row
from whippletree.types import Sample


@pytest.mark.parametrize("name", ["ppo", "dual-clip", "gspo", "gspo-token", "cispo", "masked-importance", "reinforce", "sft"])
def test_packed_and_single_rows_make_the_same_update(small_model: Path, sample_batch: list[Sample], name: str):
    settings = {"loss": {"name": name}, "correction": {} if name == "sft" else {"mask": "geometric"}}
    packed, single = make_learner(small_model, **settings), make_learner(small_model, **settings)
    samples = on_policy(packed, sample_batch)
    gradients: list[list[torch.Tensor]] = []
    for found in (packed, single):
        found.optimizer.register_step_pre_hook(lambda *_, own=found: gradients.append([p.grad.clone() for p in own.parameters]))
    packed.update([build_row(samples, ADVANTAGES, WEIGHTS)])
    single.update([build_row([sample], ADVANTAGES, WEIGHTS) for sample in samples])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    if name == "ppo":
        for a, b in zip(parameters(packed), parameters(single), strict=True):
            assert torch.allclose(a, b, atol=2e-5)


def test_sampler_and_learner_are_compared_on_the_current_version_only(small_model: Path, sample_batch: list[Sample]):
    found = make_learner(small_model)
    samples = on_policy(found, sample_batch)
    stale = build_row(samples[:1], ADVANTAGES, WEIGHTS)
    stale = dataclasses.replace(stale, versions=torch.full_like(stale.versions, 7), sampler_logprobs=stale.sampler_logprobs - 1)
    stats = found.update([stale, build_row(samples[1:], ADVANTAGES, WEIGHTS)])
    assert stats.compared_tokens == sum(int(sample.trained.sum()) for sample in samples[1:])
    assert stats.logprob_max_abs_diff < 1e-5
    assert stats.logprob_correlation > 0.99999
    assert stats.ratio_max == pytest.approx(math.e, rel=1e-4)
    assert stats.clip_fraction > 0


def test_nothing_to_compare_is_nan_not_zero(small_model: Path):
    stats = make_learner(small_model).update([])
    assert math.isnan(stats.logprob_max_abs_diff)
    assert math.isnan(stats.logprob_correlation)


def test_an_update_without_rows_changes_nothing_but_the_version(small_model: Path):
    found = make_learner(small_model)
    before = parameters(found)
    found.update([])
    assert found.policy_version == 1
    assert same(before, parameters(found))


@pytest.mark.parametrize("column", ["sampler_logprobs", "advantages", "weights"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_columns_stop_the_step_and_name_sample_and_token(
    small_model: Path, sample_batch: list[Sample], column: str, value: float
):
    found = make_learner(small_model)
    before = parameters(found)
    good = build_row(sample_batch[:1], ADVANTAGES, WEIGHTS)
    bad = build_row(sample_batch[1:], ADVANTAGES, WEIGHTS)
    owner = bad.sample_ids.index("s2")
    place = int(torch.nonzero(bad.samples == owner)[3])
    changed = getattr(bad, column).clone()
    changed[place] = value
    with pytest.raises(NonFiniteError, match=f"^{column} .* at token {int(bad.positions[bad.targets[place]])} of sample s2 "):
        found.update([good, dataclasses.replace(bad, **{column: changed})])
    assert found.policy_version == 0
    assert not found.optimizer.state
    assert same(before, parameters(found))
    assert all(parameter.grad is None for parameter in found.parameters)


def test_non_finite_logprobs_stop_the_step_too(small_model: Path, sample_batch: list[Sample]):
    found = make_learner(small_model)
    token = int(sample_batch[2].token_ids[sample_batch[2].trained][0])
    with torch.no_grad():
        found.model.model.embed_tokens.weight[token] = math.nan
    with pytest.raises(NonFiniteError, match=r"^logprobs nan at token"):
        found.update([build_row(sample_batch[2:3], ADVANTAGES, WEIGHTS)])
    assert not found.optimizer.state


def test_a_gradient_that_overflows_behind_a_finite_loss_is_laid_on_its_row(small_model: Path, sample_batch: list[Sample]):
    found = make_learner(small_model)
    before = parameters(found)

    def explode(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.inf if gradient.shape[1] == 30 else gradient

    def watch(_: object, __: object, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(explode)

    found.model.model.layers[0].mlp.register_forward_hook(watch)
    with pytest.raises(NonFiniteError, match=r"gradient norm (nan|inf) from samples s3 "):
        found.update([build_row([sample], ADVANTAGES, WEIGHTS) for sample in sample_batch])
    assert same(before, parameters(found))
    assert not found.optimizer.state


def test_a_second_pass_that_fails_takes_the_first_one_back(small_model: Path, sample_batch: list[Sample]):
    found = make_learner(small_model, passes=2, critic={"kind": "head", "clip": 0.0})
    row = build_row(sample_batch, ADVANTAGES, WEIGHTS)
    row = dataclasses.replace(row, returns=row.advantages, old_values=torch.zeros(len(row.targets)))
    found.update([row])
    assert found.critic is not None
    before = [*parameters(found), *(p.detach().clone() for p in found.critic.parameters)]
    moments = [state["exp_avg"].clone() for state in found.optimizer.state.values()]
    steps = 0

    def spoil(*_: object) -> None:
        nonlocal steps
        steps += 1
        with torch.no_grad():
            found.parameters[0][0, 0] = math.nan

    found.optimizer.register_step_post_hook(spoil)
    with pytest.raises(NonFiniteError):
        found.update([row])
    assert steps == 1
    assert found.policy_version == 1
    assert same(before, [*parameters(found), *found.critic.parameters])
    assert same(moments, [state["exp_avg"] for state in found.optimizer.state.values()])


def test_a_policy_too_far_from_its_reference_stops_the_update(small_model: Path, other_model: Path, sample_batch: list[Sample]):
    found = make_learner(small_model, kl={"reference": str(other_model), "stop_above": 0.1})
    before = parameters(found)
    rows = [build_row(sample_batch, ADVANTAGES, WEIGHTS)]
    with pytest.raises(DivergedError, match=r"learner.kl.stop_above is 0.1"):
        found.update(rows)
    assert (found.policy_version, same(before, parameters(found))) == (0, True)
    calm = make_learner(small_model, kl={"stop_above": 0.1})
    plain = make_learner(small_model)
    assert calm.update(rows).metrics["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    plain.update(rows)
    assert same(parameters(calm), parameters(plain))  # an alarm that does not ring changes nothing


def test_diagnostics_are_means_over_tokens_however_rows_are_laid(small_model: Path, sample_batch: list[Sample]):
    together, apart = make_learner(small_model), make_learner(small_model)
    first = together.update([build_row(sample_batch, ADVANTAGES, WEIGHTS)])
    second = apart.update([build_row([sample], ADVANTAGES, WEIGHTS) for sample in sample_batch])
    assert first.metrics == pytest.approx(dict(second.metrics), rel=1e-5)
    assert set(first.metrics) == {"clipped", "ratio"}
    assert first.metrics["clipped"] == pytest.approx(first.clip_fraction)


def test_a_loss_of_ones_own_reports_means_and_maxima(small_model: Path, sample_batch: list[Sample]):
    found = make_learner(small_model, loss={"name": "custom", "function": "my_losses:halved"})
    stats = found.update([build_row([sample], ADVANTAGES, WEIGHTS) for sample in sample_batch])
    assert stats.metrics == {"seen_max": 1.0}
    assert stats.clip_fraction == 0.0


def test_masking_most_samples_is_an_alarm(small_model: Path, sample_batch: list[Sample]):
    found = make_learner(small_model, correction={"mask": "sequence"})
    near = on_policy(found, sample_batch[:1])
    stats = found.update([build_row([*near, *sample_batch[1:]], ADVANTAGES, WEIGHTS)])
    assert stats.metrics["masked_sequences"] == 0.75
    assert [alarm for alarm in stats.alarms if "leaves out 75% of the samples" in alarm]
    quiet = make_learner(small_model, correction={"mask": "sequence", "max_masked_share": 0.95})
    assert quiet.update([build_row([*near, *sample_batch[1:]], ADVANTAGES, WEIGHTS)]).alarms == ()


def test_decoupled_ppo_is_the_truncated_policy_gradient_in_its_first_step(small_model: Path, sample_batch: list[Sample]):
    """With π = π_old, min(r·A, clip(r)·A) has the gradient of A·log π, so both differ from it by min(π_old/μ, cap) alone."""
    correction = {"truncate": "token", "cap": 0.2}
    decoupled = make_learner(small_model, old_logprobs="learner", correction=correction)
    plain = make_learner(small_model, loss={"name": "reinforce"}, correction=correction)
    rows = [build_row(sample_batch, ADVANTAGES, WEIGHTS)]
    stats = decoupled.update(rows)
    plain.update(rows)
    for a, b in zip(parameters(decoupled), parameters(plain), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    assert stats.metrics["ratio"] == 1.0
    assert stats.metrics["truncated"] > 0


def test_later_passes_keep_the_ratio_to_the_weights_before_the_update(small_model: Path, sample_batch: list[Sample]):
    found = make_learner(
        small_model, old_logprobs="learner", passes=3, loss={"name": "ppo", "clip_low": 0.01, "clip_high": 0.01}
    )
    stats = found.update([build_row(sample_batch, ADVANTAGES, WEIGHTS)])
    assert stats.clip_fraction > 0  # the first pass clips nothing, the others do
    assert stats.metrics["ratio"] != 1.0
    assert stats.tokens == sum(int(sample.trained.sum()) for sample in sample_batch)
    assert found.policy_version == 1


def test_learner_logprobs_can_be_given_with_the_rows(small_model: Path, sample_batch: list[Sample]):
    """Rows that bring `Learner.logprobs` make the update that the learner's own recomputation makes."""
    given, own = (make_learner(small_model, old_logprobs="learner", passes=2) for _ in range(2))
    row = build_row(sample_batch, ADVANTAGES, WEIGHTS)
    given.update([dataclasses.replace(row, proximal_logprobs=given.logprobs([row])[0])])
    own.update([row])
    assert same(parameters(given), parameters(own))


def test_the_learning_rate_warms_up(small_model: Path, sample_batch: list[Sample]):
    found = make_learner(small_model)
    rates = []
    for _ in range(3):
        found.update([build_row(sample_batch, ADVANTAGES, WEIGHTS)])
        rates.append(found.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([5e-3, 1e-2, 1e-2])


def test_a_restored_learner_makes_the_same_next_update(small_model: Path, sample_batch: list[Sample], tmp_path: Path):
    first = make_learner(small_model)
    rows = [build_row(sample_batch, ADVANTAGES, WEIGHTS)]
    first.update(rows)
    path = checkpoint.save(first, tmp_path, step=1, tokenizer_from=small_model)
    second = make_learner(small_model)
    assert checkpoint.restore(second, path).step == 1
    assert second.policy_version == 1
    first.update(rows)
    second.update(rows)
    assert same(parameters(first), parameters(second))


def test_checkpoints_are_whole_or_absent(small_model: Path, tmp_path: Path):
    found = make_learner(small_model)
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
    found = make_learner(small_model)
    checkpoint.write_weights(found, tmp_path, tokenizer_from=small_model)
    found.update([])
    update = checkpoint.write_weights(found, tmp_path, tokenizer_from=small_model)
    assert update.policy_version == 1
    assert [path.name for path in tmp_path.iterdir()] == ["version-000001"]
    assert (Path(update.directory) / "model.safetensors").is_file()
