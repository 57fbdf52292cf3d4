"""whippletree/learner/model.py and rows.py"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from whippletree.errors import ConfigurationError
from whippletree.learner.model import ModelOptions, load_model, prepare_model
from whippletree.learner.rows import build_row
from whippletree.learner.scoring import row_logprobs, score
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
    by_id = {sample.sample_id: sample for sample in sample_batch}
    with torch.no_grad():
        found = row_logprobs(model, row, temperature).tolist()
    expected = [value for name in row.sample_ids for value in reference(model, by_id[name], temperature)]
    assert found == pytest.approx(expected, abs=1e-5)


def test_score_is_the_logprob_of_each_next_token(small_model: Path):
    model = load_model(small_model)
    ids = [5, 9, 33, 2, 2, 60]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].double()
    expected = [torch.log_softmax(logits[i], -1)[ids[i + 1]].item() for i in range(5)]
    assert score(model, ids).tolist() == pytest.approx(expected, abs=1e-5)


def test_only_the_top_layers_train_when_asked(small_model: Path):
    model = load_model(small_model, ModelOptions(train_top_layers=1))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any(name.startswith("model.layers.1.") for name in trained)
    assert not any(name.startswith(("model.layers.0.", "model.embed")) for name in trained)
    with pytest.raises(ConfigurationError, match="the model has 2 layers"):
        load_model(small_model, ModelOptions(train_top_layers=3))


@pytest.mark.parametrize(
    ("model", "norm"),
    [
        (transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4)), ".ln_f."),
        (
            transformers.OPTForCausalLM(
                transformers.OPTConfig(
                    vocab_size=61,
                    hidden_size=32,
                    ffn_dim=48,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    word_embed_proj_dim=32,
                )
            ),
            "",
        ),
    ],
    ids=["gpt2", "opt"],
)
def test_layers_are_found_whatever_they_are_called(model: Any, norm: str):
    prepare_model(model, ModelOptions(train_top_layers=1, activation_checkpointing=True, packing="single"))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any(".1." in name for name in trained)
    assert not any(".0." in name or "embed" in name or "wte" in name for name in trained)
    assert any(norm in name for name in trained)


def test_a_directory_without_a_model_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="cannot load a model"):
        load_model(tmp_path)
