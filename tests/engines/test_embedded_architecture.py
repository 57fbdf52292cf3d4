"""Only models that are computed rightly are accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_parts import Models

from whippletree.engines.embedded.architecture import eos_token_ids, read_architecture
from whippletree.errors import EngineError


def changed(source: str, target: Path, **changes: Any) -> Path:
    data = json.loads((Path(source) / "config.json").read_text())
    data.update(changes)
    (target / "config.json").write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))
    return target


def test_sizes_are_read_for_both_architectures(models: Callable[[str], Models]) -> None:
    qwen = read_architecture(Path(models("qwen3").old))
    llama = read_architecture(Path(models("llama").old))
    assert (qwen.qk_norm, qwen.tied, qwen.rope_theta) == (True, True, 20000.0)
    assert (llama.qk_norm, llama.tied) == (False, False)
    assert (qwen.layers, qwen.heads, qwen.kv_heads, qwen.head_dim) == (3, 4, 2, 16)


def test_the_older_place_of_rope_theta_is_read(models: Callable[[str], Models], tmp_path: Path) -> None:
    older = changed(models("llama").old, tmp_path, rope_parameters=..., rope_theta=123.0)
    assert read_architecture(older).rope_theta == 123.0


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["MixtralForCausalLM"]},
        {"architectures": []},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"hidden_act": "gelu"},
        {"use_sliding_window": True},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
        {"rope_parameters": ..., "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"num_hidden_layers": ...},
    ],
)
def test_what_would_be_computed_wrongly_is_refused(
    models: Callable[[str], Models], tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(EngineError) as raised:
        read_architecture(changed(models("llama").old, tmp_path, **changes))
    assert raised.value.next_step


def test_a_missing_or_malformed_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"config\.json"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(EngineError, match=r"config\.json"):
        read_architecture(tmp_path)


def test_eos_ids_come_from_the_generation_settings_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 3}')
    assert eos_token_ids(tmp_path) == {3}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [4, 5]}')
    assert eos_token_ids(tmp_path) == {4, 5}
