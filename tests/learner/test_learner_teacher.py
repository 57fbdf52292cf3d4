"""Reference and teacher models that the learner runs itself (whippletree/learner/learner.py)"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from learner_parts import ADVANTAGES, WEIGHTS, make_learner, on_policy, parameters, same, write_model

from whippletree.errors import ConfigurationError
from whippletree.learner.learner import Learner
from whippletree.learner.model import load_model
from whippletree.learner.rows import Row, build_row
from whippletree.learner.scoring import ScoreOptions, best_tokens, row_logprobs, score_row
from whippletree.types import Sample


def scored(model: Any, row: Row, temperature: float) -> torch.Tensor:
    with torch.no_grad():
        return row_logprobs(model, row, temperature)


def current(found: Learner, samples: list[Sample]) -> list[Row]:
    """Rows as the present policy would have sampled their tokens."""
    return [build_row(on_policy(found, samples), ADVANTAGES, WEIGHTS)]


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_reference_logprobs_are_the_reference_models_at_the_runs_temperature(
    small_model: Path, other_model: Path, sample_batch: list[Sample], where: str
):
    kl = {"coefficient": 0.5, "where": where, "reference": str(other_model)}
    own, given = (make_learner(small_model, temperature=0.7, kl=kl) for _ in range(2))
    row = build_row(sample_batch, ADVANTAGES, WEIGHTS)
    first = own.update([row])
    second = given.update([dataclasses.replace(row, reference_logprobs=scored(load_model(other_model), row, 0.7))])
    assert first == second
    assert same(parameters(own), parameters(given))
    assert first.metrics["reference_kl"] > 0


def test_the_default_reference_is_the_runs_first_weights_and_holds_the_policy_near_them(
    small_model: Path, sample_batch: list[Sample]
):
    drift = {}
    for coefficient in (0.0, 20.0):
        found = make_learner(small_model, kl={"coefficient": coefficient, "stop_above": 1e9})
        for _ in range(6):
            stats = found.update(current(found, sample_batch))
        drift[coefficient] = stats.metrics["reference_kl"]
    assert drift[20.0] < 0.7 * drift[0.0]


def test_an_entropy_bonus_raises_entropy(small_model: Path, sample_batch: list[Sample]):
    entropy = {}
    for bonus in (1e-9, 5.0):
        found = make_learner(small_model, entropy_bonus=bonus)
        for _ in range(5):
            stats = found.update(current(found, sample_batch))
        entropy[bonus] = stats.metrics["entropy"]
    assert entropy[5.0] > entropy[1e-9] + 0.1


@pytest.mark.parametrize("name", ["distill-reverse", "distill-forward"])
def test_a_student_comes_nearer_to_its_teacher(small_model: Path, other_model: Path, sample_batch: list[Sample], name: str):
    found = make_learner(small_model, loss={"name": name}, teacher=str(other_model), teacher_top=200)
    weights = dict.fromkeys(WEIGHTS, 0.03)
    gaps = []
    for _ in range(40):
        row = build_row(on_policy(found, sample_batch), ADVANTAGES, weights)
        with torch.no_grad():
            student = best_distribution(found.model, row)
        gaps.append(float((student.exp() * (student - best_distribution(load_model(other_model), row))).sum(-1).mean()))
        found.update([row])
    assert gaps[-1] < (0.6 if name == "distill-forward" else 1.0) * gaps[0]


def best_distribution(model: Any, row: Row) -> torch.Tensor:
    everything = torch.arange(97).expand(len(row.targets), 97)
    with torch.no_grad():
        found = score_row(model, row, ScoreOptions(1.0), alternatives=everything).top_logprobs
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["distill-reverse", "distill-forward"])
def test_teachers_numbers_may_come_with_the_rows(small_model: Path, other_model: Path, sample_batch: list[Sample], name: str):
    own = make_learner(small_model, loss={"name": name}, teacher=str(other_model), teacher_top=4)
    given = make_learner(small_model, loss={"name": name})
    row, teacher = build_row(sample_batch, ADVANTAGES, WEIGHTS), load_model(other_model)
    ids, best = best_tokens(teacher, row, ScoreOptions(1.0), 4)
    brought = dataclasses.replace(
        row,
        teacher_logprobs=scored(teacher, row, 1.0),
        teacher_top_ids=ids,
        teacher_top_logprobs=best,
    )
    own.update([row])
    given.update([brought])
    assert same(parameters(own), parameters(given))


def test_distillation_without_a_teacher_is_refused(small_model: Path, sample_batch: list[Sample]):
    found = make_learner(small_model, loss={"name": "distill-reverse"})
    with pytest.raises(ConfigurationError, match="teacher_logprobs"):
        found.update([build_row(sample_batch, ADVANTAGES, WEIGHTS)])


def test_a_teacher_or_reference_with_other_tokens_is_refused(small_model: Path, tmp_path: Path):
    other = str(write_model(tmp_path, vocabulary=50))
    for settings in ({"teacher": other, "loss": {"name": "distill-reverse"}}, {"kl": {"coefficient": 0.1, "reference": other}}):
        with pytest.raises(ConfigurationError, match="has 50 tokens, the policy 97"):
            make_learner(small_model, **settings)


@pytest.mark.parametrize("what", ["teacher", "reference", "critic"])
def test_any_model_that_cannot_compute_rows_of_several_samples_is_refused_when_it_is_loaded(
    small_model: Path, tmp_path: Path, what: str
):
    transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=1, n_head=2)).save_pretrained(
        tmp_path
    )
    other = str(tmp_path)
    settings: dict[str, dict[str, Any]] = {
        "teacher": {"teacher": other, "loss": {"name": "distill-reverse"}},
        "reference": {"kl": {"coefficient": 0.1, "reference": other}},
        "critic": {"critic": {"kind": "model", "path": other}},
    }
    with pytest.raises(ConfigurationError, match=r"row of several samples.*learner\.packing"):
        make_learner(small_model, **settings[what])
    make_learner(small_model, packing="single", **settings[what])


def test_sft_makes_its_tokens_likelier(small_model: Path, sample_batch: list[Sample]):
    found = make_learner(small_model, loss={"name": "sft"})
    rows = [build_row(sample_batch, {f"r{n}": 0.0 for n in range(4)}, WEIGHTS)]
    losses = [found.update(rows).loss for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
