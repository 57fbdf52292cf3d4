"""whippletree/learner/ranked.py, sharding.py and commands.py, on real gloo processes"""

from __future__ import annotations

import dataclasses
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_parts import make_learner, parameters, same
from ranks_parts import (
    InDouble,
    Made,
    RankedInDouble,
    finish,
    make_ranked,
    many,
    one_process,
    ranks,
    run_ranks,
    same_on_ranks,
    same_update,
    single_rows,
    watched,
)

from whippletree.errors import AlignmentError, ConfigurationError, NonFiniteError, ProcessError
from whippletree.learner import checkpoint
from whippletree.learner.rows import Row, empty_row


@pytest.mark.parametrize("data", [2, 3])
def test_gradients_and_weights_are_those_of_one_process(small_model: Path, data: int):
    batches = [single_rows(), single_rows()[1:]]  # of 3 ranks, four rows leave two ranks with an empty one
    one = one_process(small_model, batches, {}, kind=InDouble)
    found = run_ranks(data, many, small_model, batches, {"ranks": ranks(data=data)}, RankedInDouble)
    same_on_ranks(one, found, tolerance=1e-9)
    for a, b in zip(one.stats, found[0].stats, strict=True):
        for name in ("loss", "grad_norm", "clip_fraction", "ratio_max", "logprob_max_abs_diff"):
            assert getattr(b, name) == pytest.approx(getattr(a, name), rel=1e-6, nan_ok=True), name
        assert b.metrics == pytest.approx(a.metrics, rel=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"passes": 2, "old_logprobs": "learner", "correction": {"truncate": "token"}},
        {"kl": {"coefficient": 0.1}, "entropy_bonus": 0.01, "activation_checkpointing": True},
        {"train_top_layers": 1, "max_grad_norm": 1e-3},
        {"lora": {"rank": 2}},
        {"precision": "bf16"},
    ],
    ids=["passes", "kl", "top", "lora", "bf16"],
)
def test_settings_of_the_learner_mean_the_same_on_ranks(small_model: Path, settings: dict[str, Any]):
    if "lora" in settings:
        pytest.importorskip("peft")
    batches = [single_rows()]
    double = "precision" not in settings
    kinds = (InDouble, RankedInDouble) if double else (None, None)
    one = one_process(small_model, batches, settings, kind=kinds[0])
    for made in run_ranks(2, many, small_model, batches, {**settings, "ranks": ranks(data=2)}, kinds[1]):
        same_update(one, made, tolerance=1e-8 if double else 2e-5)
        for a, b in zip(one.weights, made.weights, strict=True):
            torch.testing.assert_close(b, a, rtol=0.0, atol=1e-8 if double else 1e-3)


def test_several_updates_of_a_batch_are_those_of_one_process(small_model: Path):
    rows = single_rows()
    settings = {"updates": 3, "old_logprobs": "learner"}
    one = one_process(small_model, [rows[:3], [], rows[3:]], settings, kind=InDouble)
    found = run_ranks(2, many, small_model, [rows[:3], [], rows[3:]], {**settings, "ranks": ranks(data=2)}, RankedInDouble)
    for made in found:
        same_update(one, made, tolerance=1e-9)
        for a, b in zip(one.weights, made.weights, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-9)
    assert [stats.tokens for stats in found[0].stats] == [stats.tokens for stats in one.stats]
    assert found[0].stats[2].metrics["ratio"] == pytest.approx(one.stats[2].metrics["ratio"], rel=1e-6)


def test_a_rank_without_any_rows_takes_part(small_model: Path):
    batches = [single_rows()[:1], []]
    one = one_process(small_model, batches, {}, kind=InDouble)
    found = run_ranks(3, many, small_model, batches, {"ranks": ranks(data=3)}, RankedInDouble)
    for made in found:
        same_update(one, made, tolerance=1e-9)
        for a, b in zip(one.weights, made.weights, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-9)
    assert found[0].stats[0].rows == 1


@pytest.mark.parametrize("name", ["ppo", "dual-clip", "gspo", "gspo-token", "cispo", "masked-importance", "reinforce", "sft"])
def test_an_empty_row_changes_nothing(small_model: Path, name: str):
    settings = {"loss": {"name": name}, "correction": {} if name == "sft" else {"mask": "geometric"}}
    rows = single_rows()
    without, with_one = make_learner(small_model, **settings), make_learner(small_model, **settings)
    first, second = without.update(rows), with_one.update([*rows, empty_row()])
    assert same(parameters(without), parameters(with_one))
    assert first.loss == second.loss
    assert (first.rows, first.tokens, first.metrics) == (second.rows, second.tokens, second.metrics)


def broken(rank: int, directory: Path, how: str) -> Made:
    """An update in which one rank's row is not finite."""
    learner = make_ranked(directory, {"ranks": ranks(data=2), "passes": 2 if how == "later" else 1})
    made = finish(watched(learner), learner)
    before = made.weights
    rows = single_rows()
    if how == "column":
        bad = rows[2].advantages.clone()
        bad[3] = math.nan
        rows[2] = dataclasses.replace(rows[2], advantages=bad)
    if how == "inside":

        def explode(gradient: torch.Tensor) -> torch.Tensor:
            return gradient * math.inf if gradient.shape[1] == 30 else gradient

        def watch(_: object, __: object, output: torch.Tensor) -> None:
            if output.requires_grad:
                output.register_hook(explode)

        learner.model.model.layers[0].mlp.register_forward_hook(watch)
    if how == "later" and rank == 1:
        objective, seen = learner.objective, []

        def failing(tokens: Any) -> Any:
            seen.append(tokens)
            output = objective(tokens)
            return output if len(seen) <= 2 else dataclasses.replace(output, per_token=output.per_token * math.nan)

        learner.objective = failing
    try:
        if rank == 0:
            learner.update(rows)
        else:
            learner.follow()
    except NonFiniteError as error:
        made.error = str(error)
    unchanged = all(torch.equal(a, b) for a, b in zip(before, finish(made, learner).weights, strict=True))
    assert unchanged
    assert not learner.optimizer.state
    return made


@pytest.mark.parametrize(
    ("how", "said", "sample"),
    [
        ("column", "advantages nan at token", "s2"),
        ("inside", "gradient norm", "s3"),
        ("later", "loss nan at token", "of sample s"),
    ],
    ids=["column", "inside", "later"],
)
def test_a_bad_row_of_one_rank_stops_every_rank_and_is_named(small_model: Path, how: str, said: str, sample: str):
    first, second = run_ranks(2, broken, small_model, how)
    assert first.error == second.error
    assert said in first.error
    assert sample in first.error
    assert len(first.gradients) == (1 if how == "later" else 0)  # steps that were made, and undone


def losing(rank: int, directory: Path, victim: int) -> str:
    """An update in whose middle one rank is killed; rank 0 before it tells the others of it."""
    learner = make_ranked(directory, {"ranks": ranks(data=3)})
    if rank == victim == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == victim:
        learner.model.model.layers[1].register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    said = ""
    try:
        if rank == 0:
            learner.update(single_rows())
        else:
            learner.follow()
    except ProcessError as error:
        said = str(error)
    os._exit(7 if said and "lost another one" in said else 8)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_others_with_an_error(small_model: Path, victim: int):
    codes = [-signal.SIGKILL if rank == victim else 7 for rank in range(3)]
    assert run_ranks(3, losing, small_model, victim, gone=(0, 1, 2), codes=codes) == [None] * 3


def saving(rank: int, directory: Path, place: Path, settings: dict[str, Any], resume: bool) -> Made:
    """One update, a checkpoint; or restored from it, another update."""
    learner = make_ranked(directory, settings)
    made = watched(learner)
    if rank:
        learner.follow()
        return finish(made, learner)
    if resume:
        assert checkpoint.restore(learner, place / "step-0001").step == 1
    made.stats = [learner.update(single_rows())]
    if not resume:
        checkpoint.save(learner, place, step=1, tokenizer_from=directory)
    else:
        checkpoint.write_weights(learner, place / "weights", tokenizer_from=directory)
        made.scores = learner.score([5, 6, 7, 8, 9])
        made.logprobs = learner.logprobs(single_rows())
    learner.close()
    return finish(made, learner)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize(
    ("first", "second"),
    [({"data": 2}, {"data": 3}), ({"tensor": 2}, {"data": 2}), ({"data": 2}, {"data": 2, "tensor": 2})],
    ids=["data", "tensor", "to tensor"],
)
def test_a_checkpoint_goes_on_with_any_ranks(
    small_model: Path, tmp_path: Path, first: dict[str, int], second: dict[str, int], lora: bool
):
    more: dict[str, Any] = {"lora": {"rank": 2}} if lora else {}
    if lora:
        pytest.importorskip("peft")
    one = one_process(small_model, [single_rows()] * 2, more)
    run_ranks(math.prod(first.values()), saving, small_model, tmp_path, {**more, "ranks": ranks(**first)}, False)
    alone = make_learner(small_model, **more)
    assert checkpoint.restore(alone, tmp_path / "step-0001").policy_version == 1
    alone.update(single_rows())
    found = run_ranks(math.prod(second.values()), saving, small_model, tmp_path, {**more, "ranks": ranks(**second)}, True)[0]
    for a, b, c in zip(one.weights, [p.detach() for p in alone.parameters], found.weights, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(c, a, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.tensor(found.scores), torch.tensor(alone.score([5, 6, 7, 8, 9])), rtol=1e-3, atol=1e-3)
    for a, b in zip(alone.logprobs(single_rows()), found.logprobs, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-3)
    exported = make_learner(tmp_path / "weights" / "version-000002")
    torch.testing.assert_close(
        torch.tensor(exported.score([5, 6, 7])), torch.tensor(alone.score([5, 6, 7])), rtol=1e-3, atol=1e-3
    )
    names = [set(load_names(path)) for path in (tmp_path / "weights" / "version-000002", small_model)]
    assert names[0] == names[1]


def reading(rank: int, directory: Path, place: Path, settings: dict[str, Any]) -> str:
    """Restore a checkpoint of other settings."""
    learner = make_ranked(directory, settings)
    try:
        if rank:
            learner.follow()
        else:
            checkpoint.restore(learner, place / "step-0001")
    except ConfigurationError as error:
        return str(error)
    return ""


def test_adapters_of_another_rank_are_refused_on_ranks_too(small_model: Path, tmp_path: Path):
    pytest.importorskip("peft")
    checkpoint.save(make_learner(small_model, lora={"rank": 4}), tmp_path, step=1, tokenizer_from=small_model)
    found = run_ranks(2, reading, small_model, tmp_path, {"lora": {"rank": 2}, "ranks": ranks(data=2)})
    assert all("the checkpoint's adapters are not those of [learner.lora]" in said for said in found)


def brought(rank: int, directory: Path, settings: dict[str, Any], rows: list[Row]) -> Made:
    """An update whose error, if any, is noted."""
    learner = make_ranked(directory, settings)
    made = watched(learner)
    try:
        if rank:
            learner.follow()
        else:
            made.stats = [learner.update(rows)]
            learner.close()
    except AlignmentError as error:
        made.error = str(error)
    return finish(made, learner)


def test_columns_that_rows_bring_are_no_reason_to_wait(small_model: Path):
    """Three rows on two ranks, which bring what several passes would compute, or one of them only."""
    settings: dict[str, Any] = {"passes": 2, "old_logprobs": "learner", "correction": {"truncate": "token"}}
    rows = [replace(row, proximal_logprobs=row.sampler_logprobs - 0.1) for row in single_rows()[:3]]
    for batch in (rows, [rows[0], *single_rows()[1:3]]):
        one = one_process(small_model, [batch], settings)
        for made in run_ranks(2, brought, small_model, {**settings, "ranks": ranks(data=2)}, batch):
            same_update(one, made, tolerance=2e-5)


def test_a_loss_that_is_empty_without_targets_reaches_every_layer(small_model: Path):
    """Three rows on two ranks, and a loss of the user's own that gives a constant back where there is nothing to train."""
    settings: dict[str, Any] = {"loss": {"name": "custom", "function": "my_losses:constant_where_empty"}}
    one = one_process(small_model, [single_rows()[:3]], settings)
    for made in run_ranks(2, many, small_model, [single_rows()[:3]], {**settings, "ranks": ranks(data=2)}):
        same_update(one, made, tolerance=2e-5)


def load_names(directory: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(str(directory / "model.safetensors"), "pt") as file:
        return list(file.keys())
