"""whippletree/learner/attention.py, model.py and scoring.py over the architectures that differ in what a token sees"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from whippletree.errors import ConfigurationError
from whippletree.learner.attention import Way, look, sees
from whippletree.learner.model import ModelOptions, prepare_model
from whippletree.learner.rows import build_row
from whippletree.learner.runs import NAME
from whippletree.learner.scoring import ScoreOptions, row_logprobs, score_row
from whippletree.types import Sample

SIZE = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL = {**SIZE, "num_key_value_heads": 2, "initializer_range": 0.3, "max_position_embeddings": 128}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

MODELS: dict[str, Callable[[], Any]] = {
    "llama, all heads their own": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{**SMALL, "num_key_value_heads": 4})
    ),
    "qwen3, grouped heads": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL, head_dim=16)),
    "qwen3, one sliding layer": lambda: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            **SMALL, head_dim=16, use_sliding_window=True, sliding_window=4, layer_types=["full_attention", "sliding_attention"]
        )
    ),
    "mistral, sliding window": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**SMALL, sliding_window=4)),
    "gemma2, softcap and sliding": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**SMALL, head_dim=16, sliding_window=4, final_logit_softcapping=3.0)
    ),
    "gemma3, two rotations": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(
            **SMALL, head_dim=16, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
        )
    ),
    "gpt2, learned positions": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.3)
    ),
    "granite, scaled logits": lambda: transformers.GraniteForCausalLM(transformers.GraniteConfig(**SMALL, logits_scaling=2.0)),
    "cohere, scaled logits": lambda: transformers.CohereForCausalLM(transformers.CohereConfig(**SMALL, logit_scale=0.5)),
    "qwen3 moe": lambda: transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SMALL, **EXPERTS, head_dim=16)),
}
TEMPERATURE = 0.7
SAMPLES = 7


def build(name: str, dtype: torch.dtype, way: Way) -> Any:
    torch.manual_seed(4)
    model = MODELS[name]().to(dtype)
    if dtype == torch.float64 and "moe" in name:
        model.set_experts_implementation("eager")  # the fused one has no float64
    return prepare_model(model, ModelOptions(attention=way))


def sample_of(number: int, ids: np.ndarray, trained: np.ndarray) -> Sample:
    return Sample(
        sample_id=f"s{number}",
        rollout_id=f"r{number}",
        group_id="g",
        call_ids=(),
        token_ids=ids.astype(np.int32),
        trained=trained,
        logprobs=np.where(trained, -1.0, 0.0).astype(np.float32),
        versions=np.zeros(len(ids), np.int32),
    )


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Two trees and a sample of its own, longer than the windows; some train the same token."""
    rng = np.random.default_rng(2)
    trunk, other = rng.integers(0, 61, 14), rng.integers(0, 61, 9)
    beginnings = [trunk[:14], trunk[:14], trunk[:9], trunk[:3], other, other, np.zeros(0)]
    made = []
    for number, begun in enumerate(beginnings):
        ids = np.concatenate([begun, rng.integers(0, 61, 4 + number)]).astype(np.int32)
        trained = rng.random(len(ids)) < 0.5
        trained[0], trained[-1] = False, True
        made.append(sample_of(number, ids, trained))
    return made


def plain(model: Any, sample: Sample) -> torch.Tensor:
    """Logprobs of a sample's trained tokens by the model's own forward, alone and without any mask of ours: [N]."""
    ids = torch.tensor(sample.token_ids.astype(np.int64))
    logits = model(input_ids=ids[None], use_cache=False).logits[0] / TEMPERATURE
    at = torch.tensor(np.flatnonzero(sample.trained))
    return torch.log_softmax(logits, -1)[at - 1, ids[at]]


def gradients(model: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return [torch.zeros(1) if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("way", ["auto", "dense"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", MODELS)
def test_a_tree_gives_each_samples_own_logprobs_and_gradients(name: str, dtype: torch.dtype, way: Way, samples: list[Sample]):
    model = build(name, dtype, way)
    by_runs = model.config._attn_implementation == NAME
    assert by_runs == (way == "auto")
    names = {sample.rollout_id: 1.0 for sample in samples} | {sample.sample_id: 1.0 for sample in samples}
    row = build_row(samples, names, names)
    assert row.branched
    assert len(row.token_ids) == sum(len(s.token_ids) for s in samples) - 14 - 9 - 3 - 9
    scale = torch.randn(len(row.targets), dtype=dtype, generator=torch.Generator().manual_seed(1))
    found = row_logprobs(model, row, TEMPERATURE)
    got = gradients(model, (found.to(dtype) * scale).sum())
    by_id = {sample.sample_id: sample for sample in samples}
    expected = torch.cat([plain(model, by_id[sample_id]) for sample_id in row.sample_ids])
    wanted = gradients(model, (expected * scale).sum())
    rounds = "gpt2" not in name  # RMS norms and rotations are computed in float32 in every model
    precise = {"rtol": 1e-3, "atol": 2e-3} if dtype == torch.float32 else {"rtol": 0.0, "atol": 2e-5 if rounds else 1e-10}
    torch.testing.assert_close(found.to(dtype), expected, **precise)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, **precise)


def test_block_masks_hold_what_tokens_see_and_leave_out_blocks_that_nobody_sees():
    """The masks that FlexAttention would run with; running it is left to machines that can."""
    model = build("qwen3, one sliding layer", torch.float32, "dense")
    rng = np.random.default_rng(5)
    trunk = rng.integers(0, 61, 150)
    made = [sample_of(n, np.concatenate([trunk, rng.integers(0, 61, 140)]), np.arange(290) > 200) for n in range(3)]
    ones = {sample.rollout_id: 1.0 for sample in made} | {sample.sample_id: 1.0 for sample in made}
    row = build_row(made, ones, ones)
    index = torch.arange(len(row.token_ids))
    model.config._attn_implementation = "flex_attention"
    masks = look(model, row)["attention_mask"]
    assert set(masks) == {"full_attention", "sliding_attention"}
    for kind, block_mask in masks.items():
        seen = sees(row, kind, model.config)(index[:, None], index[None, :])
        assert torch.equal(block_mask.mask_mod(0, 0, index[:, None], index[None, :]), seen)
        padded = torch.nn.functional.pad(seen, (0, -len(index) % 128, 0, -len(index) % 128))
        blocks = padded.unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).any(3).any(1)
        assert torch.equal(block_mask.to_dense()[0, 0].bool(), blocks)
        assert int(blocks.sum()) < len(blocks) * (len(blocks) + 1) // 2  # fewer than merely causal ones


@pytest.mark.parametrize("name", MODELS)
def test_recomputed_activations_and_logits_in_pieces_change_no_gradient(name: str, samples: list[Sample]):
    names = {sample.rollout_id: 1.0 for sample in samples} | {sample.sample_id: 1.0 for sample in samples}
    row = build_row(samples, names, names)
    results, passes = [], []
    for recomputed in (False, True):
        torch.manual_seed(4)
        model = prepare_model(MODELS[name](), ModelOptions(activation_checkpointing=recomputed, bf16=True))
        forward = model.get_input_embeddings().register_forward_hook(lambda *_: passes.append("embedding"))
        inside = next(found for found in model.base_model.modules() if isinstance(found, torch.nn.ModuleList))[0]
        leaf = next(found for found in inside.modules() if not list(found.children()))
        counted = leaf.register_forward_hook(lambda *_: passes.append("layer"))
        found = score_row(model, row, ScoreOptions(TEMPERATURE, logit_tokens=5 if recomputed else 1024)).logprobs
        results.append([found.detach(), *gradients(model, (found * torch.linspace(-1, 1, len(found))).sum())])
        forward.remove()
        counted.remove()
    assert passes == ["embedding", "layer", "embedding", "layer", "layer"]  # a layer's inside twice, the model once
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4)),
            "row of several samples",
        ),
        (
            lambda: transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2)),
            "layers of kind linear_attention carry state",
        ),
        (
            lambda: transformers.Lfm2ForCausalLM(
                transformers.Lfm2Config(**SMALL, layer_types=["conv", "full_attention"], conv_L_cache=3)
            ),
            "layers of kind conv carry state",
        ),
    ],
)
def test_a_model_that_cannot_is_refused_with_the_reason_and_what_to_set(make: Callable[[], Any], said: str):
    torch.manual_seed(4)
    with pytest.raises(ConfigurationError, match=said) as raised:
        prepare_model(make())
    assert "learner.packing" in str(raised.value)
    prepare_model(make(), ModelOptions(packing="single"))


def test_a_model_whose_mask_is_not_obeyed_is_found_by_trying():
    class Deaf(transformers.LlamaForCausalLM):  # type: ignore[misc]
        """Attends to everything before, whatever the mask says."""

        @property
        def base_model(self) -> Any:
            inner = self.model

            def forward(**given: Any) -> Any:
                return inner(**{**given, "attention_mask": None, "position_ids": None})

            return forward

    torch.manual_seed(4)
    with pytest.raises(ConfigurationError, match="logprobs are off by"):
        prepare_model(Deaf(transformers.LlamaConfig(**SMALL)))
