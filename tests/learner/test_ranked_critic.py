"""whippletree/learner/critic.py on several real gloo processes"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_parts import ADVANTAGES, WEIGHTS, make_branched_samples, make_learner, make_samples
from ranks_parts import InDouble, Made, RankedInDouble, finish, make_ranked, one_process, ranks, run_ranks, same_update, watched

from whippletree.learner import checkpoint
from whippletree.learner.learner import Learner
from whippletree.learner.rows import Row, build_row
from whippletree.learner.sharding import full

KINDS: list[dict[str, Any]] = [
    {"kind": "head", "coefficient": 0.5, "learning_rate": 0.02},
    {"kind": "model", "learning_rate": 0.02},
]


def rows() -> list[Row]:
    """A forest, a row of two samples and one of one, with returns: three rows, which two ranks do not divide."""
    samples = make_samples()
    made = [
        build_row(make_branched_samples(), ADVANTAGES, WEIGHTS),
        build_row(samples[2:], ADVANTAGES, WEIGHTS),
        build_row(samples[:1], ADVANTAGES, WEIGHTS),
    ]
    assert made[0].branched
    return [replace(row, returns=torch.cos(row.targets.float()), old_values=torch.zeros(len(row.targets))) for row in made]


def trained(learner: Learner, *, updates: int = 2) -> Made:
    """Values before, between and after the updates, the policy's gradients and the critic's, the weights of both."""
    assert learner.critic is not None
    made = watched(learner)
    critic: list[list[torch.Tensor]] = []
    learner.critic.optimizer.register_step_pre_hook(
        lambda *_: critic.append([full(p.grad).clone() for p in learner.critic.parameters if p.grad is not None])
    )
    values = []
    if not isinstance(learner, RankedInDouble) or learner.ranks.leads:
        for _ in range(updates):
            values.append(learner.values(rows()))
            made.stats.append(learner.update(rows()))
        values.append(learner.values(rows()))
        learner.close()
    else:
        learner.follow()
    finish(made, learner)
    made.scores = (values, critic, [full(p.detach()).clone() for p in learner.critic.parameters])
    return made


def on_ranks(rank: int, directory: Path, sizes: dict[str, int], more: dict[str, Any]) -> list[Made]:
    """What learners with either critic did on these ranks."""
    settings = [{"critic": {**kind, "clip": 0.0}, "ranks": ranks(**sizes), **more} for kind in KINDS]
    return [trained(make_ranked(directory, one, kind=RankedInDouble)) for one in settings]


def alone(directory: Path, more: dict[str, Any]) -> list[Made]:
    from whippletree.configuration import convert
    from whippletree.learner.config import LearnerConfig

    found = []
    for kind in KINDS:
        settings = {"learning_rate": 1e-2, "warmup_steps": 2, "critic": {**kind, "clip": 0.0}, **more}
        found.append(trained(InDouble(directory, convert(LearnerConfig, settings, "run.toml"), temperature=1.0)))
    return found


@pytest.mark.parametrize(
    ("sizes", "more"),
    [
        ({"data": 2}, {"passes": 2, "old_logprobs": "learner"}),
        ({"context": 2}, {"max_grad_norm": 1e-3}),
        ({"tensor": 2}, {"activation_checkpointing": True}),
        ({"data": 2, "context": 2}, {}),
    ],
    ids=str,
)
def test_values_gradients_and_weights_are_those_of_one_process(small_model: Path, sizes: dict[str, int], more: dict[str, Any]):
    ones = alone(small_model, more)
    found = run_ranks(math.prod(sizes.values()), on_ranks, small_model, sizes, more)
    for number, one in enumerate(ones):
        values, gradients, weights = one.scores
        assert float(values[-1][0].abs().max()) > 1e-3
        assert any(float(gradient.abs().max()) > 1e-6 for gradient in gradients[0])
        for a, b in zip(values, found[0][number].scores[0], strict=True):
            torch.testing.assert_close(b, a, rtol=1e-8, atol=1e-8)
        for made in found:
            same_update(one, made[number], tolerance=1e-9)
            assert len(made[number].scores[1]) == len(gradients) == len(one.gradients)
            for mine, theirs in zip(gradients, made[number].scores[1], strict=True):
                torch.testing.assert_close(theirs, mine, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(made[number].scores[2], weights, rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(made[number].weights, one.weights, rtol=1e-8, atol=1e-8)
        for a, b in zip(one.stats, found[0][number].stats, strict=True):
            assert b.metrics == pytest.approx(a.metrics, rel=1e-6)
            assert b.grad_norm == pytest.approx(a.grad_norm, rel=1e-6)


def saving(rank: int, directory: Path, place: Path, sizes: dict[str, int], resume: bool) -> list[Made]:
    """For either critic: an update and a checkpoint; or restored from it, another update."""
    found = []
    for kind in KINDS:
        learner = make_ranked(directory, {"critic": kind, "ranks": ranks(**sizes)})
        made, of_kind = watched(learner), place / kind["kind"]
        if rank:
            learner.follow()
        else:
            if resume:
                checkpoint.restore(learner, of_kind / "step-0001")
            made.stats = [learner.update(rows())]
            made.scores = learner.values(rows())
            if not resume:
                checkpoint.save(learner, of_kind, step=1, tokenizer_from=directory)
            learner.close()
        found.append(finish(made, learner))
    return found


def test_a_critic_goes_on_with_other_ranks(small_model: Path, tmp_path: Path):
    run_ranks(2, saving, small_model, tmp_path, {"tensor": 2}, False)
    found = run_ranks(3, saving, small_model, tmp_path, {"data": 3}, True)[0]
    for kind, made in zip(KINDS, found, strict=True):
        one = one_process(small_model, [rows()] * 2, {"critic": kind})
        for a, b in zip(one.weights, made.weights, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
        learner = make_learner(small_model, critic=kind)
        checkpoint.restore(learner, tmp_path / kind["kind"] / "step-0001")
        learner.update(rows())
        for a, b in zip(learner.values(rows()), made.scores, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)
