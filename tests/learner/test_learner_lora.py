"""whippletree/learner/lora.py"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_parts import ADVANTAGES, WEIGHTS, make_branched_samples, make_learner, same

from whippletree.errors import ConfigurationError, StoreError
from whippletree.learner import checkpoint
from whippletree.learner.learner import Learner
from whippletree.learner.lora import adapter_state, load_adapters, merged_state
from whippletree.learner.model import load_model
from whippletree.learner.rows import build_row
from whippletree.learner.scoring import score
from whippletree.types import Sample

needs_peft = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed (the extra lora)")
LORA: dict[str, Any] = {"rank": 4, "alpha": 8.0}
PROMPT = [5, 9, 33, 2, 2, 60, 17]


def adapted(directory: Path, **settings: Any) -> Learner:
    return make_learner(directory, lora={**LORA, **settings})


def base_of(found: Learner) -> list[torch.Tensor]:
    return [value.clone() for name, value in found.model.state_dict().items() if ".lora_" not in name]


@pytest.fixture
def rows(sample_batch: list[Sample]):
    return [build_row(sample_batch, ADVANTAGES, WEIGHTS)]


@needs_peft
def test_fresh_adapters_change_nothing_and_are_all_that_trains(small_model: Path, rows):
    found, plain = adapted(small_model), make_learner(small_model)
    assert found.score(PROMPT).tolist() == plain.score(PROMPT).tolist()
    before = base_of(found)
    stats = found.update(rows)
    assert stats.loss == pytest.approx(plain.update(rows).loss, rel=1e-6)
    assert same(before, base_of(found))
    assert sum(parameter.numel() for parameter in found.parameters) == sum(
        v.numel() for v in adapter_state(found.model).values()
    )
    assert found.score(PROMPT).tolist() != plain.score(PROMPT).tolist()
    assert not any(module.training for module in found.model.modules())


@needs_peft
def test_engines_get_merged_weights_that_score_alike(small_model: Path, rows, tmp_path: Path):
    found = adapted(small_model, targets=["q_proj", "down_proj"])
    for _ in range(3):
        found.update(rows)
    before = {name: value.clone() for name, value in found.model.state_dict().items()}
    update = checkpoint.write_weights(found, tmp_path, tokenizer_from=small_model)
    served = load_model(Path(update.directory))
    assert score(served, PROMPT).tolist() == pytest.approx(found.score(PROMPT).tolist(), abs=1e-4)
    plain = load_model(small_model)
    assert {n: v.shape for n, v in merged_state(found.model).items()} == {n: v.shape for n, v in plain.state_dict().items()}
    changed = [name for name, value in plain.state_dict().items() if not torch.equal(value, served.state_dict()[name])]
    assert len(changed) == 4
    assert all(name.endswith(("q_proj.weight", "down_proj.weight")) for name in changed)
    assert all(torch.equal(value, found.model.state_dict()[name]) for name, value in before.items())


@needs_peft
def test_a_restored_learner_with_adapters_makes_the_same_next_update(small_model: Path, rows, tmp_path: Path):
    first = adapted(small_model)
    first.update(rows)
    path = checkpoint.save(first, tmp_path, step=1, tokenizer_from=small_model)
    second = adapted(small_model, seed=5)
    checkpoint.restore(second, path)
    first.update(rows)
    second.update(rows)
    assert same(first.parameters, second.parameters)
    assert same(base_of(first), base_of(second))
    plain = make_learner(path)  # a checkpoint is a model like any other
    third = adapted(small_model)
    checkpoint.restore(third, path)
    assert plain.score(PROMPT).tolist() == pytest.approx(third.score(PROMPT).tolist(), abs=1e-4)


@needs_peft
@pytest.mark.parametrize("settings", [{}, {"precision": "bf16"}, {"activation_checkpointing": True}])
def test_a_tree_and_single_rows_train_adapters_alike(small_model: Path, settings: dict[str, Any]):
    samples = make_branched_samples()
    gradients: list[list[torch.Tensor]] = []
    tree = [build_row(samples, ADVANTAGES, WEIGHTS)]
    assert tree[0].branched
    for given in (tree, [build_row([sample], ADVANTAGES, WEIGHTS) for sample in samples]):
        found = make_learner(small_model, lora={**LORA, "seed": 1}, **settings)
        with torch.no_grad():
            for number, parameter in enumerate(found.parameters):
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
        found.optimizer.register_step_pre_hook(lambda *_, own=found: gradients.append([p.grad.clone() for p in own.parameters]))
        found.update(given)
    precise = 0.05 if settings.get("precision") == "bf16" else 1e-5
    for a, b in zip(*gradients, strict=True):
        assert a.abs().sum() > 0
        assert float((a - b).norm()) <= precise * float(b.norm()) + 1e-7


@needs_peft
def test_what_does_not_fit_is_refused(small_model: Path, tmp_path: Path):
    with pytest.raises(ConfigurationError, match="no_such_layer"):
        adapted(small_model, targets=["no_such_layer"])
    with pytest.raises(ConfigurationError, match="rank and targets"):
        load_adapters(adapted(small_model).model, adapter_state(adapted(small_model, rank=2).model))
    path = checkpoint.save(make_learner(small_model), tmp_path, step=1, tokenizer_from=small_model)
    with pytest.raises(StoreError, match=r"without adapters.*learner\.lora\.rank = 0"):
        checkpoint.restore(adapted(small_model), path)


def test_adapters_and_top_layers_exclude_each_other(small_model: Path):
    with pytest.raises(ConfigurationError, match="use one of them"):
        make_learner(small_model, lora={"rank": 4}, train_top_layers=1)


def test_a_missing_package_says_what_to_install(small_model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'whippletree\[lora\]'"):
        adapted(small_model)
