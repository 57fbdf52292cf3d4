"""Worker extension for vLLM: load new weights into the live model, and leave nothing behind that was made of the old ones.

It runs in vLLM's interpreter, so it imports nothing of whippletree, and uses torch and vLLM only through the worker it extends.

vLLM's own `reload_weights` copies a checkpoint into the live parameters and packs each layer again that received tensors.
On CPU a linear layer computes from a packed copy of its weight. With tied embeddings the output head receives no tensors
of its own: its parameter changes with the embedding's, its packed copy does not, so the body is new and the head is old.
`whippletree_load` therefore packs every layer again that still has an unpacked weight.

Invariants (tests/engines/test_vllm_server.py, tests/engines/test_vllm_client.py):
- after a load the model's logprobs are those of the new directory, with tied embeddings and without;
- a directory whose tensors are not those of the model in name and shape is refused, and nothing has changed.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 24
HEAD = "lm_head.weight"  # directories of models with tied embeddings may hold it or not

Shapes = dict[str, list[int]]


class WeightLoader:
    """Mixed into vLLM's worker class (`--worker-extension-cls whippletree_vllm.WeightLoader`)."""

    model_runner: Any
    model_config: Any
    _whippletree_shapes: Shapes | None = None

    def whippletree_load(self, directory: str) -> dict[str, Any]:
        """Load the *.safetensors of a directory on this machine: {checksum, tensors, repacked}, or {refused: why}."""
        files = weight_files(directory)
        if self._whippletree_shapes is None:  # of the model that vLLM started with; empty if that is not a directory here
            self._whippletree_shapes = tensor_shapes(weight_files(self.model_config.model))
        shapes = tensor_shapes(files)
        if problem := difference(self._whippletree_shapes, shapes):
            return {"refused": problem}
        value = checksum(files)
        self.model_runner.reload_weights(weights_path=directory)
        return {"checksum": value, "tensors": len(shapes), "repacked": self._pack_again()}

    def _pack_again(self) -> int:
        packed = 0
        for module in self.model_runner.get_model().modules():
            weight = getattr(module, "weight", None)
            if hasattr(module, "cpu_linear") and weight is not None and weight.numel():
                module.quant_method.process_weights_after_loading(module)
                packed += 1
        return packed


def difference(old: Shapes, new: Shapes) -> str:
    """Why a directory with tensors `new` cannot replace one with `old`; "" if it can. Without `old` any tensors will do."""
    if not new:
        return "no *.safetensors with tensors in it"
    if not old:
        return ""
    for name in sorted((old.keys() | new.keys()) - {HEAD}):
        if old.get(name) != new.get(name):
            return f"tensor {name} has shape {new.get(name, 'none')}, the model's has {old.get(name, 'none')}"
    return ""


def weight_files(directory: str) -> list[Path]:
    """The safetensors files of a directory in order; empty if there are none."""
    return sorted(Path(directory).glob("*.safetensors"))


def checksum(files: list[Path]) -> int:
    """CRC-32 of the files' bytes in order."""
    value = 0
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                value = zlib.crc32(chunk, value)
    return value


def tensor_shapes(files: list[Path]) -> Shapes:
    """Name → shape, from the headers of safetensors files (8 bytes of length, then JSON)."""
    shapes: Shapes = {}
    for file in files:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        shapes.update({name: entry["shape"] for name, entry in header.items() if name != "__metadata__"})
    return shapes
