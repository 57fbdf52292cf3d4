"""Training with a real vLLM as the engine: harness, gateway, vLLM, in-place weight updates, agreement with the learner."""

from __future__ import annotations

import asyncio
from pathlib import Path

import demo_parts as parts
import pytest
import torch
from suite import prompt_of, request, run
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm_parts import PYTHON, needs_vllm, vllm_server

from whippletree.engines.vllm import VllmEngine
from whippletree.loop.layout import Layout

pytestmark = [pytest.mark.vllm, pytest.mark.live, pytest.mark.timeout(1200), needs_vllm]


def test_a_run_trains_through_vllm(tmp_path: Path):
    directory = tmp_path / "run"
    settings = (
        "loop.steps=3", "loop.groups_per_step=4", "loop.groups_in_flight=6", "loop.eval_every=0", "loop.eval_samples=1",
        "sources.0.tasks.family={train = 24, heldout = 12}",
        f'engine={{kind = "vllm", python = "{PYTHON}", dtype = "float32", context = 512}}',
    )  # fmt: skip
    summary = parts.finish(parts.start(directory, *settings), directory)
    assert summary["complete"]
    assert summary["failed_rollouts"] == 0
    assert summary["logprob_max_abs_diff"] <= 1e-4
    assert summary["logprob_correlation"] >= 0.9999
    parts.assert_trained_once(directory, 3)
    assert _worst_of_a_fresh_vllm(Layout(directory).checkpoints / "step-0003", tmp_path) <= 1e-3


def _worst_of_a_fresh_vllm(checkpoint: Path, logs: Path) -> float:
    """The most by which the logprobs of a vLLM that is started on a checkpoint differ from those of transformers."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    prompt = prompt_of(11, 24)
    assert len(AutoTokenizer.from_pretrained(checkpoint)) <= model.config.vocab_size
    with vllm_server(PYTHON, checkpoint, logs / "fresh.log") as url:
        ids, logprobs = asyncio.run(_sample(url, prompt))
    assert ids
    with torch.no_grad():
        scores = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return float((scores.gather(1, torch.tensor(ids)[:, None])[:, 0] - torch.tensor(logprobs)).abs().max())


async def _sample(url: str, prompt: list[int]) -> tuple[list[int], list[float]]:
    engine = VllmEngine(url)
    try:
        seen = await run(engine, request("fresh", prompt, max_tokens=12, seed=3))
    finally:
        await engine.close()
    return seen.token_ids, seen.logprobs
