"""A small random Qwen3 and rows made of random samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from whippletree.types import Sample

VOCABULARY = 97


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=0.2,
        tie_word_embeddings=True,
        max_position_embeddings=256,
    )
    directory = tmp_path_factory.mktemp("small-model")
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


def make_sample(number: int, length: int, rng: np.random.Generator, *, version: int = 0) -> Sample:
    trained = rng.random(length) < 0.5
    trained[0] = False
    trained[-1] = True
    return Sample(
        sample_id=f"s{number}",
        rollout_id=f"r{number}",
        group_id=f"g{number // 2}",
        call_ids=(f"c{number}",),
        token_ids=rng.integers(0, VOCABULARY, length).astype(np.int32),
        trained=trained,
        logprobs=np.where(trained, -rng.random(length) * 3, 0.0).astype(np.float32),
        versions=np.where(trained, version, -1).astype(np.int32),
    )


@pytest.fixture
def sample_batch() -> list[Sample]:
    rng = np.random.default_rng(11)
    return [make_sample(number, length, rng) for number, length in enumerate((7, 19, 12, 30))]
