"""The learner over trees: an update is the same however its samples are laid (learner.py, rows.py, batching/ranks.py)"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learner_parts import ADVANTAGES, WEIGHTS, make_branched_samples, make_learner, on_policy

from whippletree.batching import Packing, SampleLength, path_advantages, plan_batch, prefix_order
from whippletree.batching import Path as CriticPath
from whippletree.batching.config import GaeConfig, PackingConfig
from whippletree.learner.critic import with_returns
from whippletree.learner.learner import UpdateStats
from whippletree.learner.rows import Row, build_row, by_sample
from whippletree.types import Sample

LOSSES = ("ppo", "dual-clip", "gspo", "gspo-token", "cispo", "masked-importance", "reinforce", "sft")
SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"loss": {"name": name}} for name in LOSSES},
    "sequence mask": {"correction": {"mask": "sequence", "mask_low": 0.9, "mask_high": 1.5}, "old_logprobs": "learner"},
    "kl in the reward": {"kl": {"coefficient": 0.3, "where": "reward"}, "passes": 2},
    "critic": {"critic": {"kind": "head"}},
    "entropy": {"entropy_bonus": 0.1},
}


def laid(samples: list[Sample], packing: Packing, *, ranks: int = 1, budget: int = 40) -> list[list[Row]]:
    """The rows of each rank."""
    lengths = [SampleLength(sample_id=s.sample_id, rollout_id=s.rollout_id, tokens=len(s.token_ids)) for s in samples]
    order = prefix_order({sample.sample_id: sample.token_ids for sample in samples})
    (update,) = plan_batch(lengths, PackingConfig(packing=packing, token_budget=budget), ranks, order).updates
    by_id = {sample.sample_id: sample for sample in samples}
    return [
        [build_row([by_id[name] for name in row.sample_ids], ADVANTAGES, WEIGHTS, shared=row.shared) for row in rank]
        for rank in update.ranks
    ]


def updated(directory: Path, settings: dict[str, Any], rows: list[Row]) -> tuple[UpdateStats, list[torch.Tensor]]:
    """Statistics and the first gradient, before it is clipped, of an update from these rows."""
    found = make_learner(directory, max_grad_norm=0.0, **settings)
    if "critic" in settings:
        rows = [dataclasses.replace(row, returns=row.advantages, old_values=torch.zeros(len(row.targets))) for row in rows]
    gradients: list[torch.Tensor] = []

    def keep(*_: object) -> None:
        if not gradients:
            gradients.extend([parameter.grad.clone() for parameter in found.parameters])

    found.optimizer.register_step_pre_hook(keep)
    return found.update(rows), gradients


@pytest.fixture(scope="module")
def nearly_on_policy(small_model: Path) -> list[Sample]:
    """Branched samples whose sampler was a little off."""
    samples = on_policy(make_learner(small_model), make_branched_samples())
    for number, sample in enumerate(samples):
        sample.logprobs[sample.trained] -= 0.05 * number
    return samples


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_trees_and_single_rows_make_the_same_update(
    small_model: Path, nearly_on_policy: list[Sample], settings: dict[str, Any]
):
    (tree,) = laid(nearly_on_policy, "tree", budget=100)
    (single,) = laid(nearly_on_policy, "single")
    assert any(row.branched for row in tree)
    assert sum(len(row.token_ids) for row in tree) == sum(len(row.token_ids) for row in single) - 9 - 11
    assert sum(len(row.targets) for row in tree) == sum(len(row.targets) for row in single)
    (found, gradients), (expected, wanted) = (updated(small_model, settings, rows) for rows in (tree, single))
    for a, b in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)
    assert found.metrics == pytest.approx(dict(expected.metrics), rel=1e-4, abs=1e-5)
    assert (found.tokens, found.compared_tokens) == (expected.tokens, expected.compared_tokens)


def test_generalised_advantages_of_each_path_of_a_tree_come_from_its_own_values(small_model: Path):
    """s2 and s3 share eleven tokens and both train two of them: each path estimates these from what follows on it."""
    samples = make_branched_samples()
    found = make_learner(small_model, critic={"kind": "head"})
    assert found.critic is not None
    torch.nn.init.normal_(found.critic.head.weight, generator=torch.Generator().manual_seed(2))
    config = GaeConfig(gamma=0.9, lam=0.8, whiten=False)

    def credited(rows: list[Row]) -> list[Row]:
        values = found.values(rows)
        paths = [
            CriticPath(
                sample_id=name,
                rollout_id=name,
                values=own,
                trained=np.ones(len(own), np.bool_),
                calls=np.zeros(len(own), np.int32),
                reward=float(name == "s2"),
            )
            for row, column in zip(rows, values, strict=True)
            for name, own in by_sample(row, column).items()
        ]
        estimated = path_advantages(paths, config)
        return with_returns(rows, values, estimated.advantages, estimated.returns)

    ((tree,), singles) = (credited(laid(samples, packing, budget=100)[0]) for packing in ("tree", "single"))
    assert tree.branched and tree.returns is not None and tree.old_values is not None
    for single in singles:
        assert single.returns is not None and single.old_values is not None
        own = tree.samples == tree.sample_ids.index(single.sample_ids[0])
        torch.testing.assert_close(tree.advantages[own], single.advantages, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(tree.returns[own], single.returns, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(tree.old_values[own], single.old_values, rtol=1e-4, atol=1e-5)
    first, second = (tree.advantages[tree.samples == tree.sample_ids.index(name)] for name in ("s2", "s3"))
    assert not torch.allclose(first[:2], second[:2])


@pytest.mark.parametrize("packing", ["tree", "rows"])
@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_the_gradients_of_all_ranks_add_up_to_those_of_one(
    small_model: Path, nearly_on_policy: list[Sample], ranks: int, packing: Packing
):
    """Seven ranks are more than there are samples: some run a row that holds none."""
    shares = laid(nearly_on_policy, packing, ranks=ranks)
    assert len({len(rows) for rows in shares}) == 1
    assert any(not row.sample_ids for rows in shares for row in rows) == (ranks == 7)
    (alone,) = laid(nearly_on_policy, "single")
    settings = SETTINGS["gspo"]
    _, wanted = updated(small_model, settings, alone)
    parts = [updated(small_model, settings, rows)[1] for rows in shares]
    for column, b in zip(zip(*parts, strict=True), wanted, strict=True):
        torch.testing.assert_close(torch.stack(column).sum(0), b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [*SETTINGS.values(), {"loss": {"name": "distill-forward"}}], ids=[*SETTINGS, "teacher"])
def test_a_row_of_no_samples_is_computed_and_moves_nothing(small_model: Path, settings: dict[str, Any]):
    if "loss" in settings and settings["loss"]["name"].startswith("distill"):
        settings = {**settings, "teacher": str(small_model)}
    stats, gradients = updated(small_model, settings, [build_row([], {}, {})])
    assert all(not gradient.any() for gradient in gradients)
    assert len(gradients) > 0
    assert (stats.loss, stats.tokens, stats.grad_norm) == (0.0, 0, 0.0)
