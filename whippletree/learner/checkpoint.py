"""Checkpoints in Hugging Face layout, and the weights directory that engines load from.

A checkpoint directory holds config.json, model.safetensors, the tokenizer's files, optimizer.pt and state.json, and
critic.pt where there is a critic, adapters.pt where there are adapters. Weights are the merged ones.
Invariants (tests/learner/test_learner_update.py):
- a checkpoint appears whole or not at all (written beside, synced, renamed);
- a learner restored from it makes the same next update, bit for bit.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import torch

from whippletree.errors import StoreError
from whippletree.learner.learner import Learner
from whippletree.types import Struct, WeightUpdate

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


class CheckpointState(Struct):
    """What a checkpoint continues from: `step` updates are in it.

    Example: CheckpointState(step=12, policy_version=12)
    """

    step: int
    policy_version: int


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files from one model directory to another."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def export(learner: Learner, directory: Path, *, tokenizer_from: Path) -> None:
    """Write the current weights, merged with any adapters, and the tokenizer in Hugging Face layout."""
    learner.model.save_pretrained(str(directory), state_dict=learner.weights())
    copy_tokenizer(tokenizer_from, directory)


def save(learner: Learner, directory: Path, *, step: int, tokenizer_from: Path) -> Path:
    """Write `directory/step-NNNN` atomically and return it. An existing one of the same step is replaced."""
    target = directory / f"step-{step:04d}"
    partial = directory / f".partial-step-{step:04d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    export(learner, partial, tokenizer_from=tokenizer_from)
    if learner.config.lora.rank:
        torch.save(learner.adapters(), partial / "adapters.pt")
    torch.save(learner.optimizer_state(), partial / "optimizer.pt")
    if learner.critic is not None:
        torch.save(learner.critic.state_dict(), partial / "critic.pt")
    state = CheckpointState(step=step, policy_version=learner.policy_version)
    (partial / "state.json").write_bytes(msgspec.json.encode(state))
    for file in partial.iterdir():
        _sync(file)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    _sync(directory)
    return target


def read_state(checkpoint: Path) -> CheckpointState:
    """Raises StoreError when the directory holds no whole checkpoint."""
    try:
        return msgspec.json.decode((checkpoint / "state.json").read_bytes(), type=CheckpointState)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(f"{checkpoint} is no whole checkpoint: {error}", "resume from an older one") from error


def latest(directory: Path) -> Path | None:
    """The newest whole checkpoint, or None."""
    found = [path for path in in_order(directory) if (path / "state.json").is_file()]
    return found[-1] if found else None


def in_order(directory: Path) -> list[Path]:
    """Checkpoint directories by step."""
    return sorted(directory.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def restore(learner: Learner, checkpoint: Path) -> CheckpointState:
    """Load weights and optimiser into a learner that was built from any directory of the same architecture."""
    state = read_state(checkpoint)
    learner.announce_restore(checkpoint)
    if learner.config.lora.rank:  # the model's own weights never changed
        learner.load_adapters(_load(checkpoint / "adapters.pt", "adapters", "learner.lora.rank = 0"))
    else:
        _load_weights(learner, checkpoint)
    learner.load_optimizer_state(torch.load(checkpoint / "optimizer.pt", weights_only=True))
    if learner.critic is not None:
        learner.critic.load_state_dict(_load(checkpoint / "critic.pt", "a critic", 'learner.critic.kind = "none"'))
    learner.policy_version = state.policy_version
    return state


def _load_weights(learner: Learner, checkpoint: Path) -> None:
    from safetensors.torch import load_file

    tensors = {name: tensor for file in sorted(checkpoint.glob("*.safetensors")) for name, tensor in load_file(file).items()}
    missing, unexpected = learner.load_weights(tensors)
    tied = set(getattr(learner.model, "_tied_weights_keys", None) or ())
    if unexpected or set(missing) - tied:
        raise StoreError(f"{checkpoint} does not fit the model: missing {missing}, unexpected {unexpected}", "check [model]")


def _load(file: Path, what: str, setting: str) -> Any:
    if not file.is_file():
        raise StoreError(f"{file} is missing: the checkpoint was written without {what}", f"set {setting}")
    return torch.load(file, weights_only=True)


def prune(directory: Path, *, keep: int) -> None:
    """Remove all but the first and the `keep` newest checkpoints; the newest always stays."""
    found = in_order(directory)
    for old in found[1 : max(1, len(found) - max(1, keep))]:
        shutil.rmtree(old)


def write_weights(learner: Learner, directory: Path, *, tokenizer_from: Path) -> WeightUpdate:
    """Write the current weights for engines into a directory of their own version; the one before is removed."""
    target = directory / f"version-{learner.policy_version:06d}"
    partial = directory / ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    export(learner, partial, tokenizer_from=tokenizer_from)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    for old in directory.glob("version-*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    return WeightUpdate(directory=str(target), policy_version=learner.policy_version)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
