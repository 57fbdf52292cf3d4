"""Weights load exactly or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_parts import Models
from safetensors.torch import load_file, save_file

from whippletree.engines.embedded.architecture import read_architecture
from whippletree.engines.embedded.weights import load_weights
from whippletree.errors import EngineError

Edit = Callable[[dict[str, torch.Tensor]], None]


def edited(source: str, target: Path, edit: Edit) -> Path:
    shutil.copytree(source, target, dirs_exist_ok=True)
    tensors = load_file(target / "model.safetensors")
    edit(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def poison(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = torch.inf


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda tensors: tensors.pop("model.layers.2.mlp.down_proj.weight"), r"down_proj.* is missing"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.ones(5)}), r"model\.norm\.weight is \(5,\)"),
        (lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(5)}), r"q_proj\.bias has no place"),
        (poison, r"up_proj.* NaN or inf"),
    ],
)
def test_anything_but_exactly_this_model_is_refused(
    models: Callable[[str], Models], tmp_path: Path, edit: Edit, words: str
) -> None:
    directory = edited(models("llama").old, tmp_path, edit)
    with pytest.raises(EngineError, match=words):
        load_weights(directory, read_architecture(directory), torch.float32, 1)


def test_another_architecture_is_refused(models: Callable[[str], Models]) -> None:
    with pytest.raises(EngineError, match="another model"):
        load_weights(Path(models("llama").old), read_architecture(Path(models("qwen3").old)), torch.float32, 1)


def test_a_damaged_or_missing_file_is_named(models: Callable[[str], Models], tmp_path: Path) -> None:
    shutil.copytree(models("llama").old, tmp_path, dirs_exist_ok=True)
    architecture = read_architecture(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(EngineError, match=r"model\.safetensors"):
        load_weights(tmp_path, architecture, torch.float32, 1)
    file.unlink()
    with pytest.raises(EngineError, match=r"no \*\.safetensors"):
        load_weights(tmp_path, architecture, torch.float32, 1)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_the_files_may_be_overwritten_afterwards(models: Callable[[str], Models], tmp_path: Path, kind: str) -> None:
    shutil.copytree(models(kind).old, tmp_path, dirs_exist_ok=True)
    architecture = read_architecture(tmp_path)
    weights = load_weights(tmp_path, architecture, torch.float32, 3)
    kept = [tensor.clone() for tensor in (weights.embedding, weights.head, weights.norm, weights.layers[1].out)]
    with (tmp_path / "model.safetensors").open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(size // 2)
        file.write(b"\x7f" * (size - size // 2))
    now = (weights.embedding, weights.head, weights.norm, weights.layers[1].out)
    assert all(torch.equal(a, b) for a, b in zip(kept, now, strict=True))
    assert weights.version == 3


def test_tied_weights_are_one_tensor(models: Callable[[str], Models]) -> None:
    directory = Path(models("qwen3").old)
    weights = load_weights(directory, read_architecture(directory), torch.float32, 0)
    assert weights.head is weights.embedding
