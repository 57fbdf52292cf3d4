"""whippletree/learner/tensor.py, layout.py and collectives.py, on real gloo processes"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from learner_parts import ADVANTAGES, VOCABULARY, WEIGHTS, make_branched_samples, make_samples
from ranks_parts import InDouble, Made, RankedInDouble, make_ranked, many, one_process, ranks, run_ranks, same_update
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from whippletree.errors import ConfigurationError
from whippletree.learner.rows import Row, build_row
from whippletree.learner.sharding import full, pieces
from whippletree.learner.tensor import cut, require_plan

SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.2,
    "max_position_embeddings": 128,
    "pad_token_id": 7,
}
MODELS: dict[str, Callable[[], Any]] = {
    "biases and an output layer of its own": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    ),
    "scaled embeddings, norms of heads, sliding layers": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**SHAPE, sliding_window=4, layer_types=["sliding_attention", "full_attention"])
    ),
    "gathered projections": lambda: transformers.Phi3ForCausalLM(
        transformers.Phi3Config(**{**SHAPE, "head_dim": 8, "pad_token_id": 0})
    ),
    "a norm over all heads": lambda: transformers.OlmoeForCausalLM(
        transformers.OlmoeConfig(**{**SHAPE, "head_dim": 8}, num_experts=4, num_experts_per_tok=2)
    ),
}


def batches() -> list[list[Row]]:
    """Two updates of branched and plain rows of uneven length; the second leaves a data rank with an empty one."""
    samples = make_samples()
    forest = build_row(make_branched_samples(), ADVANTAGES, WEIGHTS)
    assert forest.branched
    return [[forest, build_row(samples[2:], ADVANTAGES, WEIGHTS), build_row(samples[:1], ADVANTAGES, WEIGHTS)], [forest]]


def as_one(found: list[Made], one: Made, *, tolerance: float = 1e-9) -> None:
    for made in found:
        same_update(one, made, tolerance=tolerance)
        for a, b in zip(one.weights, made.weights, strict=True):
            torch.testing.assert_close(b, a, rtol=10 * tolerance, atol=10 * tolerance)
    for a, b in zip(one.stats, found[0].stats, strict=True):
        assert (a.rows, a.tokens, a.compared_tokens) == (b.rows, b.tokens, b.compared_tokens)
        assert b.grad_norm == pytest.approx(a.grad_norm, rel=1e-6)
        assert b.metrics == pytest.approx(a.metrics, rel=1e-6)


def several(rank: int, jobs: list[tuple[Any, ...]]) -> list[Made]:
    """One learner after the other."""
    return [many(rank, *job) for job in jobs]


@pytest.mark.parametrize("sizes", [{"tensor": 2}, {"data": 2, "tensor": 2}, {"context": 2, "tensor": 2}], ids=str)
def test_sharing_layers_makes_the_update_of_one_process(small_model: Path, sizes: dict[str, int]):
    settings: dict[str, Any] = {"entropy_bonus": 0.01}
    one = one_process(small_model, batches(), settings, kind=InDouble)
    ranked = {**settings, "ranks": ranks(**sizes)}
    as_one(run_ranks(math.prod(sizes.values()), many, small_model, batches(), ranked, RankedInDouble), one)


def test_every_style_of_a_plan_makes_the_update_of_one_process(tmp_path: Path):
    ones, jobs = [], []
    for number, (name, make) in enumerate(MODELS.items()):
        directory = tmp_path / str(number)
        torch.manual_seed(number)
        make().save_pretrained(directory)
        ones.append((name, one_process(directory, batches()[:1], {}, kind=InDouble)))
        jobs.append((directory, batches()[:1], {"ranks": ranks(tensor=2)}, RankedInDouble))
    found = run_ranks(2, several, jobs)
    for number, (name, one) in enumerate(ones):
        tolerance = 1e-7 if name == "a norm over all heads" else 1e-9  # its router computes a softmax in float32
        as_one([made[number] for made in found], one, tolerance=tolerance)


def test_settings_of_the_learner_mean_the_same_where_layers_are_shared(small_model: Path):
    pytest.importorskip("peft")
    cases: list[tuple[dict[str, Any], float]] = [
        ({"lora": {"rank": 2}}, 1e-9),
        ({"activation_checkpointing": True, "logit_tokens": 8}, 1e-9),
        ({"train_top_layers": 1, "max_grad_norm": 1e-3}, 1e-9),
        ({"packing": "single"}, 1e-9),
        ({"precision": "bf16"}, 6e-2),
    ]
    rows = [build_row([sample], ADVANTAGES, WEIGHTS) for sample in make_samples()]
    jobs, ones = [], []
    for settings, tolerance in cases:
        kinds = (InDouble, RankedInDouble) if tolerance < 1e-6 else (None, None)
        ones.append(one_process(small_model, [rows], settings, kind=kinds[0]))
        jobs.append((small_model, [rows], {**settings, "ranks": ranks(tensor=2)}, kinds[1]))
    found = run_ranks(2, several, jobs)
    for number, (_, tolerance) in enumerate(cases):
        if tolerance < 1e-6:
            as_one([made[number] for made in found], ones[number], tolerance=tolerance)
        else:
            for a, b in zip(ones[number].gradients[0], found[0][number].gradients[0], strict=True):
                assert float((a - b).norm()) < tolerance * float(a.norm()) + 1e-6


def laid_and_whole_again(rank: int) -> None:
    """Uneven pieces of uneven pieces: 3 x 2 ranks, dimensions that neither divides."""
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("shard", "tensor"))
    torch.manual_seed(0)
    cases = [((97, 8), Shard(0)), ((7, 6), Shard(0)), ((5, 9), Shard(1)), ((4, 14, 3), _StridedShard(1, split_factor=2))]
    wholes = {f"p{number}": torch.randn(shape) for number, (shape, _) in enumerate(cases)}
    module = torch.nn.Module()
    for (name, whole), (_, placement) in zip(wholes.items(), cases, strict=True):
        local = cut(whole, placement, rank % 2, 2).contiguous()
        tensor = DTensor.from_local(
            local, mesh["tensor"], [placement], run_check=False, shape=whole.shape, stride=whole.stride()
        )
        module.register_parameter(name, torch.nn.Parameter(tensor))
    module.register_parameter("plain", torch.nn.Parameter(torch.arange(5.0)))
    wholes["plain"] = torch.arange(5.0)
    fully_shard(module, mesh=mesh["shard"])
    for name, parameter in module.named_parameters():
        assert torch.equal(full(parameter), wholes[name]), name
        again = pieces(wholes[name], parameter)
        assert torch.equal(again.to_local(), parameter.to_local()), name
        assert again.placements == parameter.placements


def test_uneven_pieces_are_laid_as_fsdp_lays_them_and_whole_again():
    run_ranks(6, laid_and_whole_again)


def refused(rank: int, directory: Path, changes: list[dict[str, str | None]], sizes: dict[str, int]) -> list[str]:
    """What a model is refused for whose plan is changed so."""
    said = []
    for change in changes:
        plan = {**transformers.Qwen3Config.base_model_tp_plan, **change}
        transformers.Qwen3Config.base_model_tp_plan = {name: style for name, style in plan.items() if style is not None}
        try:
            make_ranked(directory, {"ranks": ranks(**sizes)})
            said.append("")
        except ConfigurationError as error:
            said.append(str(error))
    return said


def test_a_plan_that_would_train_another_model_is_refused(small_model: Path):
    norms = {f"layers.*.self_attn.{name}_norm": None for name in "qk"}
    found = run_ranks(2, refused, small_model, [norms, {"layers.*.self_attn.o_proj": None}], {"tensor": 2})
    for forgotten, broken in found:
        assert "the gradient of model.layers.0.self_attn.q_norm.weight (4 parameters in all) differs between ranks" in forgotten
        assert "cannot be shared by 1 x 2 ranks" in broken


def test_context_ranks_share_the_heads_that_a_tensor_rank_has(small_model: Path):
    found = run_ranks(6, refused, small_model, [{}], {"context": 3, "tensor": 2})
    assert all("context = 3 does not divide one tensor-parallel rank's 2 attention heads" in said for (said,) in found)


@pytest.mark.parametrize(
    ("model", "size", "said"),
    [
        (
            lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2)),
            2,
            "GPT2LMHeadModel has no",
        ),
        (lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)), 4, "divide the model's 2 key-value heads"),
        (lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)), 3, "divide the model's 4 attention heads"),
    ],
    ids=["plan", "groups", "heads"],
)
def test_models_that_ranks_cannot_share_are_refused(model: Callable[[], Any], size: int, said: str):
    with pytest.raises(ConfigurationError, match=said):
        require_plan(model(), size)


def test_a_plan_with_an_unknown_style_is_refused():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE))
    model.tp_plan = {**model.tp_plan, "model.layers.*.self_attn.q_proj": "mla_kv_a_proj"}
    with pytest.raises(ConfigurationError, match="mla_kv_a_proj"):
        require_plan(model, 2)
