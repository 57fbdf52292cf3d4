"""Which experts tokens went to, as the embedded engine tells it: against transformers' own routers"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_parts import Models, build, embedded_process, make_core, make_sequence

from whippletree.engines.embedded.architecture import read_architecture
from whippletree.engines.embedded.client import EmbeddedEngine
from whippletree.engines.embedded.core import EngineCore
from whippletree.engines.embedded.weights import load_weights
from whippletree.engines.experts import npy_experts, npy_text, routed_experts
from whippletree.types import GenerateRequest, RoutedExperts, Sampling, TokenChunk


def choices(experts: RoutedExperts) -> np.ndarray[Any, Any]:
    return np.frombuffer(experts.data, "<i2").reshape(experts.shape)


@lru_cache
def plain(directory: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def expected(directory: str, ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """The routers' own choices of each token but the last, sorted: [tokens - 1, layers, k]."""
    seen: list[torch.Tensor] = []
    model = plain(directory)
    routers = [module for name, module in model.named_modules() if name.endswith(".gate")]
    hooks = [router.register_forward_hook(lambda module, inputs, output: seen.append(output[2])) for router in routers]
    with torch.no_grad():
        model(torch.tensor([list(ids[:-1])]))
    for hook in hooks:
        hook.remove()
    return np.sort(torch.stack(seen, 1).numpy(), -1)


def run(core: EngineCore, *sequences: Any) -> list[TokenChunk]:
    for sequence in sequences:
        core.submit(sequence)
    while core.busy:
        core.step()
    return [sequence.take(0)[-1] for sequence in sequences]


@pytest.fixture(scope="module")
def experts_models(models: Callable[[str], Models]) -> Models:
    return models("qwen3-moe")


def test_they_are_those_of_every_computed_token_also_where_its_beginning_was_reused(experts_models: Models) -> None:
    core = make_core(experts_models.old, prefill_tokens=7)
    prompt = list(range(30, 58))
    first = make_sequence("a", prompt, max_tokens=9)
    (last,) = run(core, first)
    assert last.experts is not None
    assert (last.experts.start, last.experts.shape) == (0, (len(prompt) + 8, 3, 2))
    np.testing.assert_array_equal(np.sort(choices(last.experts), -1), expected(experts_models.old, first.tokens))
    second = make_sequence("b", [*first.tokens, 7, 8], max_tokens=5)
    beside = make_sequence("c", [*prompt[:20], 1, 2, 3], max_tokens=5)  # another slot, with a copied beginning
    for sequence, chunk in zip((second, beside), run(core, second, beside), strict=True):
        assert chunk.cached_tokens >= 20
        assert chunk.experts is not None
        np.testing.assert_array_equal(np.sort(choices(chunk.experts), -1), expected(experts_models.old, sequence.tokens))


def test_after_a_swap_they_are_those_of_the_weights_that_computed_the_tokens_last(experts_models: Models) -> None:
    core = make_core(experts_models.old)
    sequence = make_sequence("a", list(range(40, 60)), max_tokens=12)
    core.submit(sequence)
    for _ in range(5):
        core.step()
    core.swap(load_weights(Path(experts_models.new), read_architecture(Path(experts_models.new)), torch.float32, 1))
    while core.busy:
        core.step()
    found = sequence.take(1)[-1].experts
    assert found is not None
    np.testing.assert_array_equal(np.sort(choices(found), -1), expected(experts_models.new, sequence.tokens))


def test_a_dense_model_tells_none(models: Callable[[str], Models]) -> None:
    (last,) = run(make_core(models("qwen3").old), make_sequence("a", [1, 2, 3], max_tokens=3))
    assert last.experts is None


def test_experts_that_are_not_normed_compute_as_transformers_does(tmp_path: Path, reference: Any) -> None:
    directory = build(tmp_path, "qwen3-moe", 4, norm_topk_prob=False, num_experts_per_tok=3)
    sequence = make_sequence("a", list(range(20, 40)), max_tokens=1, score=True)
    run(make_core(directory), sequence)
    np.testing.assert_allclose(sequence.prompt_logprobs, reference(directory, tuple(sequence.tokens[:20]), 1.0), atol=5e-5)


async def test_they_come_over_http_with_the_last_chunk(experts_models: Models, tmp_path: Path) -> None:
    with embedded_process(experts_models.old, tmp_path) as (url, _):
        engine = EmbeddedEngine(url)
        request = GenerateRequest(request_id="r", prompt_ids=list(range(9, 30)), sampling=Sampling(max_tokens=6))
        chunks = [chunk async for chunk in engine.generate(request)]
        report = await engine.probe()
        await engine.close()
    assert [chunk.experts for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    found = chunks[-1].experts
    assert found is not None
    ids = [*request.prompt_ids, *(token for chunk in chunks for token in chunk.token_ids)]
    np.testing.assert_array_equal(np.sort(choices(found), -1), expected(experts_models.old, ids))
    assert (report.grade, report.experts) == ("tokens", True)


def test_what_is_written_is_read_again() -> None:
    array = np.arange(24, dtype=np.int16).reshape(4, 3, 2)
    assert npy_experts(npy_text(routed_experts(array, "x")), "x") == routed_experts(array, "x")
