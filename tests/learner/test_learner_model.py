"""whippletree/learner/model.py and rows.py"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from whippletree.errors import ConfigurationError
from whippletree.learner.model import SHARED, load_model, score
from whippletree.learner.rows import build_row, shared_beginning
from whippletree.learner.scoring import row_logprobs
from whippletree.types import Sample

ONES = {f"r{n}": 1.0 for n in range(9)}
WEIGHTS = {f"s{n}": 0.1 for n in range(9)}


def reference(model: torch.nn.Module, sample: Sample, temperature: float) -> list[float]:
    """Plain forward of one sample, logits everywhere."""
    ids = torch.tensor(sample.token_ids.astype(np.int64))
    with torch.no_grad():
        logits = model(input_ids=ids[None]).logits[0].double() / temperature
    logprobs = torch.log_softmax(logits, -1)
    return [logprobs[index - 1, ids[index]].item() for index in np.flatnonzero(sample.trained)]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_packed_row_gives_each_samples_own_logprobs(small_model: Path, sample_batch: list[Sample], temperature: float):
    model = load_model(small_model)
    row = build_row(sample_batch, ONES, WEIGHTS)
    with torch.no_grad():
        found = row_logprobs(model, row, temperature).tolist()
    expected = [value for sample in sample_batch for value in reference(model, sample, temperature)]
    assert found == pytest.approx(expected, abs=1e-5)


def with_beginning(samples: list[Sample], length: int) -> list[Sample]:
    """The samples behind `length` tokens of context that are the same in all."""
    rng = np.random.default_rng(5)
    head = rng.integers(0, 97, length).astype(np.int32)
    return [
        msgspec.structs.replace(
            sample,
            token_ids=np.concatenate([head, sample.token_ids]),
            trained=np.concatenate([np.zeros(length, np.bool_), sample.trained]),
            logprobs=np.concatenate([np.zeros(length, np.float32), sample.logprobs]),
            versions=np.concatenate([np.full(length, -1, np.int32), sample.versions]),
        )
        for sample in samples
    ]


def test_a_shared_beginning_is_laid_once_and_changes_no_logprob(small_model: Path, sample_batch: list[Sample]):
    model = load_model(small_model)
    samples = with_beginning(sample_batch, 40)
    row = build_row(samples, ONES, WEIGHTS)
    shared = int((row.segments == SHARED).sum())
    assert shared == shared_beginning(samples) >= 39
    assert len(row.token_ids) == shared + sum(len(sample.token_ids) - shared for sample in samples)
    assert int(row.targets.sum()) == sum(int(sample.trained.sum()) for sample in samples)
    before = torch.nonzero(row.targets)[:, 0] - 1
    assert torch.equal(row.segments[before], row.segments[before + 1])
    with torch.no_grad():
        found = row_logprobs(model, row, 0.7).tolist()
    expected = [value for sample in samples for value in reference(model, sample, 0.7)]
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_shared_beginning_changes_no_gradient(small_model: Path, sample_batch: list[Sample]):
    samples = with_beginning(sample_batch, 40)
    together, apart = load_model(small_model), load_model(small_model)
    row_logprobs(together, build_row(samples, ONES, WEIGHTS), 1.0).sum().backward()
    for sample in samples:
        row_logprobs(apart, build_row([sample], ONES, WEIGHTS), 1.0).sum().backward()
    for a, b in zip(together.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("trained", "shared"),
    [((2, 5), 1), ((5, 5), 4), ((0, 5), 0), ((7, 7), 6), ((9, 9), 6)],
)
def test_what_is_shared_ends_before_the_first_trained_token_and_where_samples_differ(trained: tuple[int, int], shared: int):
    samples = []
    for number, start in enumerate(trained):
        ids = np.array([1, 2, 3, 4, 5, 6, 50 + number, 8, 9, 10], np.int32)
        samples.append(
            Sample(
                sample_id=f"s{number}",
                rollout_id=f"r{number}",
                group_id="g",
                call_ids=("c",),
                token_ids=ids,
                trained=np.arange(10) >= start,
                logprobs=np.zeros(10, np.float32),
                versions=np.zeros(10, np.int32),
            )
        )
    assert shared_beginning(samples) == shared
    assert shared_beginning(samples[:1]) == 0


def test_score_is_the_logprob_of_each_next_token(small_model: Path):
    model = load_model(small_model)
    ids = [5, 9, 33, 2, 2, 60]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].double()
    expected = [torch.log_softmax(logits[i], -1)[ids[i + 1]].item() for i in range(5)]
    assert score(model, ids).tolist() == pytest.approx(expected, abs=1e-5)


def test_every_trained_token_is_a_target_once(sample_batch: list[Sample]):
    row = build_row(sample_batch, ONES, WEIGHTS)
    assert int(row.targets.sum()) == sum(int(sample.trained.sum()) for sample in sample_batch)
    assert row.positions.tolist() == [i for sample in sample_batch for i in range(len(sample.token_ids))]
    assert row.advantages[~row.targets].abs().sum() == 0
    assert row.weights[~row.targets].abs().sum() == 0


def test_only_the_top_layers_train_when_asked(small_model: Path):
    model = load_model(small_model, train_top_layers=1)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any(name.startswith("model.layers.1.") for name in trained)
    assert not any(name.startswith(("model.layers.0.", "model.embed")) for name in trained)
    with pytest.raises(ConfigurationError, match="the model has 2 layers"):
        load_model(small_model, train_top_layers=3)


def test_a_directory_without_a_model_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="cannot load a model"):
        load_model(tmp_path)
