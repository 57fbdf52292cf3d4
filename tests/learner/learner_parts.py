"""A small random Qwen3, random samples, and learners over them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from whippletree.configuration import convert
from whippletree.learner.config import LearnerConfig
from whippletree.learner.learner import Learner
from whippletree.learner.rows import build_row
from whippletree.learner.scoring import row_logprobs
from whippletree.types import Sample

VOCABULARY = 97
ADVANTAGES = {"r0": 1.0, "r1": -1.0, "r2": 0.5, "r3": -0.25}
WEIGHTS = {"s0": 0.05, "s1": 0.02, "s2": 0.03, "s3": 0.01}


def write_model(directory: Path, *, seed: int = 3, vocabulary: int = VOCABULARY) -> Path:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
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


def make_samples() -> list[Sample]:
    rng = np.random.default_rng(11)
    return [make_sample(number, length, rng) for number, length in enumerate((7, 19, 12, 30))]


def make_branched_samples() -> list[Sample]:
    """Samples that begin alike: s1, s2 and s3 with nine tokens, s2 and s3 with eleven, the last two of which both train."""
    s0, *others = make_samples()
    found = [s0]
    for sample, begun in zip(others, (9, 11, 11), strict=True):
        ids, trained = sample.token_ids.copy(), sample.trained.copy()
        ids[:begun] = others[2].token_ids[:begun]
        trained[:9], trained[9:begun], trained[-1] = False, True, True
        found.append(msgspec.structs.replace(sample, token_ids=ids, trained=trained))
    return found


def make_learner(directory: Path, *, temperature: float = 1.0, run_steps: int = 0, **settings: Any) -> Learner:
    """A learner with a high learning rate and the given settings, as a run file has them."""
    config = convert(LearnerConfig, {"learning_rate": 1e-2, "warmup_steps": 2, **settings}, "run.toml")
    return Learner(directory, config, temperature=temperature, run_steps=run_steps)


def parameters(found: Learner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in found.model.parameters()]


def same(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def on_policy(found: Learner, samples: Sequence[Sample]) -> list[Sample]:
    """The samples with the learner's own logprobs as the sampler's."""
    result = []
    for sample in samples:
        with torch.no_grad():
            values = row_logprobs(found.model, build_row([sample], ADVANTAGES, WEIGHTS), found.temperature).numpy()
        logprobs = sample.logprobs.copy()
        logprobs[sample.trained] = values
        result.append(msgspec.structs.replace(sample, logprobs=logprobs))
    return result
