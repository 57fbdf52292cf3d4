"""What tests of the embedded engine are made of: tiny random models, in-process cores, real engine processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from whippletree.engines.embedded.architecture import read_architecture
from whippletree.engines.embedded.core import EngineCore
from whippletree.engines.embedded.sequence import Sequence as EngineSequence
from whippletree.engines.embedded.weights import load_weights
from whippletree.types import Sampling

VOCABULARY = 256
CONTEXT = 512
WAIT_SECONDS = 60.0


class Models(msgspec.Struct):
    """Weight directories of one architecture: two sets of random weights."""

    old: str
    new: str


def build(directory: Path, kind: str, seed: int, **changes: Any) -> str:
    """A tiny random model in Hugging Face layout; norms are not 1, so that a forgotten one shows."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 8192,
        "initializer_range": 0.15,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": kind == "qwen3",
        "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
        **changes,
    }
    torch.manual_seed(seed)
    if kind == "qwen3-moe":
        sizes = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "norm_topk_prob": True}
        model: Any = Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**sizes, **settings}))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**settings)) if kind == "qwen3" else LlamaForCausalLM(LlamaConfig(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return str(directory)


@contextmanager
def embedded_process(
    model: str, directory: Path, *arguments: str, context: int = CONTEXT
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A real embedded engine: its URL and process. It is ended with SIGTERM afterwards."""
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "whippletree.engines.embedded", "--model", model, "--context", str(context)]
    process = subprocess.Popen(
        [*command, "--ready-file", str(ready), "--exit-with-parent", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
    )
    try:
        limit = time.monotonic() + WAIT_SECONDS
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > limit:
                assert process.stderr is not None
                pytest.fail(f"the engine did not start: {process.stderr.read().decode()}")
            time.sleep(0.02)
        address = msgspec.json.decode(ready.read_bytes())
        yield f"http://{address['host']}:{address['port']}", process
    finally:
        process.terminate()
        process.wait(30)
        assert process.stderr is not None
        process.stderr.close()


def make_core(model: str, *, slots: int = 8, context: int = 160, prefill_tokens: int = 64) -> EngineCore:
    """An engine core in this process, float32."""
    architecture = read_architecture(Path(model))
    weights = load_weights(Path(model), architecture, torch.float32, 0)
    return EngineCore(architecture, weights, slots=slots, context=context, prefill_tokens=prefill_tokens, dtype=torch.float32)


def make_sequence(
    name: str, prompt: Sequence[int], *, stop: Sequence[int] = (), score: bool = False, **sampling: Any
) -> EngineSequence:
    """A request as the core sees it, with its name as seed."""
    return EngineSequence(
        request_id=name,
        prompt_length=len(prompt),
        tokens=list(prompt),
        sampling=Sampling(**sampling),
        stop_ids=frozenset(stop),
        uniforms=random.Random(name),
        score_prompt=score,
    )
