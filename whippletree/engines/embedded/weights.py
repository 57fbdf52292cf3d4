"""Weights of one policy version, read from safetensors into the fused form that the forward pass uses.

Invariants (tests/engines/test_embedded_weights.py):
- every tensor has its exact name and shape, none is left over and all values are finite, or nothing is loaded;
- the result shares no memory with the files, so that they may be replaced afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from whippletree.engines.embedded.architecture import Architecture, read_architecture
from whippletree.errors import EngineError, words_of


@dataclass(frozen=True)
class MlpWeights:
    """A feed-forward layer: `gate_up` [2 · intermediate, hidden]; `down` transposed for an in-place addmm: [intermediate,
    hidden]."""

    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class ExpertWeights:
    """A mixture of them: `router` [experts, hidden], and each expert's layer."""

    router: torch.Tensor
    experts: tuple[MlpWeights, ...]


@dataclass(frozen=True)
class LayerWeights:
    """One block. `qkv` [(heads + 2 kv_heads) · head_dim, hidden]: q, k, v in this order, the values of each q and k head
    reordered so that rotary pairs are adjacent; `qk_norm` [heads + kv_heads, head_dim] in the same order, or None;
    `out` is transposed for an in-place addmm: [in, hidden]. Weights of norms are float32 and multiplied by the square root of
    the normed size (see Forward)."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    qk_norm: torch.Tensor | None
    out: torch.Tensor
    mlp_norm: torch.Tensor
    mlp: MlpWeights | ExpertWeights


@dataclass(frozen=True)
class Weights:
    """All weights of one policy version. `embedding` and `head` are [vocabulary, hidden] and one tensor where tied."""

    version: int
    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor


def load_weights(directory: Path, architecture: Architecture, dtype: torch.dtype, version: int) -> Weights:
    """Read a directory in Hugging Face layout. Raises EngineError, naming the tensor, when it is not exactly this model."""
    found = read_architecture(directory)
    if found != architecture:
        raise EngineError(
            f"{directory}: config.json describes another model than the one served", "publish the same architecture"
        )
    tensors = _read_tensors(directory)
    _check(tensors, _expected(architecture), architecture, directory)
    order = _rotary_order(architecture.head_dim)
    embedding = _own(tensors["model.embed_tokens.weight"], dtype)
    return Weights(
        version=version,
        embedding=embedding,
        layers=tuple(_layer(tensors, index, architecture, order, dtype) for index in range(architecture.layers)),
        norm=_norm(tensors["model.norm.weight"]),
        head=embedding if architecture.tied else _own(tensors["lm_head.weight"], dtype),
    )


def _read_tensors(directory: Path) -> dict[str, torch.Tensor]:
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise EngineError(f"{directory}: no *.safetensors file", "save the model with save_pretrained")
    tensors: dict[str, torch.Tensor] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                tensors.update((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118 (not a mapping)
        except (OSError, SafetensorError) as error:
            raise EngineError(
                f"{path}: {words_of(error)}", "the file is damaged or still being written; publish it again"
            ) from error
    return tensors


def _expected(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor of the model."""
    query, key = a.heads * a.head_dim, a.kv_heads * a.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (a.vocabulary, a.hidden),
        "model.norm.weight": (a.hidden,),
    }
    if not a.tied:
        shapes["lm_head.weight"] = (a.vocabulary, a.hidden)
    block: dict[str, tuple[int, ...]] = {
        "input_layernorm": (a.hidden,),
        "post_attention_layernorm": (a.hidden,),
        "self_attn.q_proj": (query, a.hidden),
        "self_attn.k_proj": (key, a.hidden),
        "self_attn.v_proj": (key, a.hidden),
        "self_attn.o_proj": (a.hidden, query),
    }
    for name in _mlp_names(a):
        block |= {
            f"{name}.gate_proj": (a.intermediate, a.hidden),
            f"{name}.up_proj": (a.intermediate, a.hidden),
            f"{name}.down_proj": (a.hidden, a.intermediate),
        }
    if a.experts:
        block["mlp.gate"] = (a.experts, a.hidden)
    if a.qk_norm:
        block |= {"self_attn.q_norm": (a.head_dim,), "self_attn.k_norm": (a.head_dim,)}
    for layer in range(a.layers):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    return shapes


def _mlp_names(a: Architecture) -> list[str]:
    """Of a block's feed-forward layers."""
    return [f"mlp.experts.{expert}" for expert in range(a.experts)] if a.experts else ["mlp"]


def _check(tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]], a: Architecture, where: Path) -> None:
    for name, shape in shapes.items():
        if name not in tensors:
            raise EngineError(f"{where}: tensor {name} is missing", "publish every tensor of the model")
        if tuple(tensors[name].shape) != shape:
            raise EngineError(f"{where}: tensor {name} is {tuple(tensors[name].shape)}, not {shape}", "publish the same model")
        if not torch.isfinite(tensors[name].sum(dtype=torch.float64)):
            raise EngineError(
                f"{where}: tensor {name} holds NaN or inf", "the update that wrote it went wrong; publish the last good one"
            )
    ignored = {"lm_head.weight"} if a.tied else set()
    extra = sorted(name for name in set(tensors) - set(shapes) - ignored if not name.endswith("rotary_emb.inv_freq"))
    if extra:
        raise EngineError(f"{where}: tensor {extra[0]} has no place in a {a.kind}", "serve this model with vLLM")


def _layer(
    tensors: Mapping[str, torch.Tensor], index: int, a: Architecture, order: torch.Tensor, dtype: torch.dtype
) -> LayerWeights:
    def get(name: str) -> torch.Tensor:
        return tensors[f"model.layers.{index}.{name}.weight"]

    query = get("self_attn.q_proj").view(a.heads, a.head_dim, a.hidden)[:, order].flatten(0, 1)
    key = get("self_attn.k_proj").view(a.kv_heads, a.head_dim, a.hidden)[:, order].flatten(0, 1)
    qk_norm = None
    if a.qk_norm:
        per_head = [get("self_attn.q_norm")[order]] * a.heads + [get("self_attn.k_norm")[order]] * a.kv_heads
        qk_norm = _norm(torch.stack(per_head))
    mlps = tuple(
        MlpWeights(
            gate_up=_own(torch.cat([get(f"{name}.gate_proj"), get(f"{name}.up_proj")]), dtype),
            down=_own(get(f"{name}.down_proj"), dtype).t(),
        )
        for name in _mlp_names(a)
    )
    return LayerWeights(
        attention_norm=_norm(get("input_layernorm")),
        qkv=_own(torch.cat([query, key, get("self_attn.v_proj")]), dtype),
        qk_norm=qk_norm,
        out=_own(get("self_attn.o_proj"), dtype).t(),
        mlp_norm=_norm(get("post_attention_layernorm")),
        mlp=ExpertWeights(router=_own(get("mlp.gate"), dtype), experts=mlps) if a.experts else mlps[0],
    )


def _own(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A contiguous copy that no file backs."""
    return tensor.to(dtype, copy=True).contiguous()


def _norm(weight: torch.Tensor) -> torch.Tensor:
    """A norm's weight, times the square root of the size that it norms."""
    return torch.mul(weight.double(), math.sqrt(weight.shape[-1])).float()


def _rotary_order(head_dim: int) -> torch.Tensor:
    """Order of a head's values that puts value i beside value i + head_dim/2, its partner in the rotation; shape [head_dim]."""
    return torch.arange(head_dim).view(2, head_dim // 2).t().flatten()
