"""What a model directory's config.json says, reduced to what the engine computes.

Invariants (tests/engines/test_embedded_architecture.py):
- only Llama and Qwen3 models, and Qwen3's mixtures of experts, with plain rotary embeddings pass; anything that would be
  computed wrongly is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from whippletree.errors import EngineError

ARCHITECTURES = {"LlamaForCausalLM": False, "Qwen3ForCausalLM": True, "Qwen3MoeForCausalLM": True}
"""Supported architectures → whether queries and keys are normalised per head."""

_MUST_BE: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "pretraining_tp": (1, None),
    "decoder_sparse_step": (1, None),
    "mlp_only_layers": ([], None),
}
"""Settings that change the computation, with the values that this engine implements."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of one model. `heads` query heads share `kv_heads` key and value heads of `head_dim` values each. Of `experts`
    (0: none, the model is dense), each of `intermediate` values, a token uses `experts_used`, whose weights sum to 1 where
    `experts_normed`."""

    kind: str
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_epsilon: float
    rope_theta: float
    tied: bool
    max_positions: int
    experts: int = 0
    experts_used: int = 0
    experts_normed: bool = False

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head."""
        return ARCHITECTURES[self.kind]


def read_architecture(directory: Path) -> Architecture:
    """Read config.json. Raises EngineError when it is missing, malformed or describes a model that is not supported."""
    path = directory / "config.json"
    data = _read_json(path)
    kinds = data.get("architectures") or []
    kind = kinds[0] if len(kinds) == 1 else ""
    if kind not in ARCHITECTURES:
        raise EngineError(
            f"{path}: architecture {', '.join(map(str, kinds)) or 'not given'} is not supported by the embedded engine",
            f"use one of {', '.join(ARCHITECTURES)}, or serve the model with vLLM",
        )
    for key, allowed in _MUST_BE.items():
        if key in data and data[key] not in allowed:
            raise EngineError(f"{path}: {key} = {data[key]!r} is not supported by the embedded engine", "serve it with vLLM")
    try:
        heads = int(data["num_attention_heads"])
        hidden = int(data["hidden_size"])
        sparse = kind == "Qwen3MoeForCausalLM"
        return Architecture(
            kind=kind,
            vocabulary=int(data["vocab_size"]),
            hidden=hidden,
            intermediate=int(data["moe_intermediate_size" if sparse else "intermediate_size"]),
            layers=int(data["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(data.get("num_key_value_heads") or heads),
            head_dim=int(data.get("head_dim") or hidden // heads),
            norm_epsilon=float(data.get("rms_norm_eps", 1e-6)),
            rope_theta=_rope_theta(data, path),
            tied=bool(data.get("tie_word_embeddings", False)),
            max_positions=int(data.get("max_position_embeddings", 2**31)),
            experts=int(data.get("num_local_experts") or data["num_experts"]) if sparse else 0,
            experts_used=int(data["num_experts_per_tok"]) if sparse else 0,
            experts_normed=sparse and bool(data.get("norm_topk_prob", False)),
        )
    except KeyError as error:
        raise EngineError(f"{path}: {error.args[0]} is missing", "save the model again with save_pretrained") from error


def eos_token_ids(directory: Path) -> frozenset[int]:
    """End-of-sequence ids of generation_config.json, else of config.json; empty where neither names any."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if not path.exists():
            continue
        value = _read_json(path).get("eos_token_id")
        if value is not None:
            return frozenset(value if isinstance(value, list) else [value])
    return frozenset()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error.strerror}", "give a model directory in Hugging Face layout") from error
    except msgspec.DecodeError as error:
        raise EngineError(f"{path}: {error}", "save the model again with save_pretrained") from error


def _rope_theta(data: dict[str, Any], path: Path) -> float:
    parameters = data.get("rope_parameters") or data.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default" or float(parameters.get("partial_rotary_factor", 1.0)) != 1.0 or data.get("rope_interleaved"):
        raise EngineError(f"{path}: rotary embedding {kind!r} is not supported by the embedded engine", "serve it with vLLM")
    return float(parameters.get("rope_theta") or data.get("rope_theta") or 10000.0)
