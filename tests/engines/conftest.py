"""Tiny models, made once per session, and the shared suite on the path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the shared suite and parts
pytest.register_assert_rewrite("suite", "engine_parts")

from engine_parts import Models, build  # noqa: E402


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Models]:
    """models("qwen3") or models("llama"): two sets of weights, built on first use."""
    import torch

    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("models")

    @lru_cache
    def get(kind: str) -> Models:
        return Models(old=build(root / f"{kind}-old", kind, 1), new=build(root / f"{kind}-new", kind, 2))

    return get


@pytest.fixture(scope="session")
def reference() -> Callable[[str, Sequence[int], float], list[float]]:
    """Logprobs of ids[1:] under the weights of a directory, at a temperature, by transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    @lru_cache
    def load(directory: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def logprobs(directory: str, ids: Sequence[int], temperature: float) -> list[float]:
        tokens = torch.tensor([list(ids)])
        with torch.no_grad():
            logits = load(directory)(input_ids=tokens).logits[0, :-1].float()
        scores = torch.log_softmax(logits / temperature, -1).gather(1, tokens[0, 1:, None])[:, 0]
        return [float(score) for score in scores]

    return logprobs
