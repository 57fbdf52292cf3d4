"""Checkpoints in Hugging Face layout, and the weights directory that engines load from.

A checkpoint directory holds config.json, model.safetensors, the tokenizer's files, optimizer.pt, random.pt and state.json, and
critic.pt where there is a critic, adapters.pt where there are adapters. Weights are the merged ones. The schedule's position is
the policy version; which rollouts are trained, finished or under way is in the run's store.
Invariants (tests/learner/test_learner_update.py, tests/learner/test_checkpoint_files.py):
- a checkpoint appears whole or not at all (written beside, synced, renamed);
- one of which a byte is missing or changed is refused, with the name of the file, and the one before it is used;
- a learner restored from it makes the same next update, bit for bit.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import torch

from whippletree.errors import StoreError, words_of
from whippletree.learner.learner import Learner
from whippletree.types import Struct, WeightUpdate

log = logging.getLogger(__name__)

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


class CheckpointState(Struct):
    """What a checkpoint continues from: `step` updates are in it. `files`: SHA-256 of each of its other files, by name.

    Example: CheckpointState(step=12, policy_version=12, files={"model.safetensors": "9f86d0..."})
    """

    step: int
    policy_version: int
    files: dict[str, str] = {}


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
        torch.save(learner.critic_state(), partial / "critic.pt")
    torch.save(_random_state(), partial / "random.pt")
    digests = {file.name: _digest(file) for file in sorted(partial.iterdir())}
    state = CheckpointState(step=step, policy_version=learner.policy_version, files=digests)
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
        raise StoreError(f"{checkpoint} is no whole checkpoint: {words_of(error)}", "resume from an older one") from error


def verify(checkpoint: Path) -> None:
    """Raises StoreError, naming the file, where one of a checkpoint's files is missing or is not what was written."""
    for name, digest in read_state(checkpoint).files.items():
        try:
            found = _digest(checkpoint / name)
        except OSError as error:
            raise StoreError(
                f"{checkpoint / name} cannot be read: {words_of(error)}", "resume from an older checkpoint"
            ) from error
        if found != digest:
            raise StoreError(f"{checkpoint / name} is damaged: it is not what was written", "resume from an older checkpoint")


def latest(directory: Path) -> Path | None:
    """The newest checkpoint that is whole and undamaged, or None where there has been none. Damaged ones are named in the log.

    Raises StoreError where there are only damaged ones: to begin again from nothing is not what a resume means.
    """
    damaged: StoreError | None = None
    for path in reversed([path for path in in_order(directory) if (path / "state.json").is_file()]):
        try:
            verify(path)
        except StoreError as error:
            log.warning("%s; the checkpoint before it is used", error)
            damaged = damaged or error
        else:
            return path
    if damaged is not None:
        raise damaged
    return None


def in_order(directory: Path) -> list[Path]:
    """Checkpoint directories by step."""
    return sorted(directory.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def restore(learner: Learner, checkpoint: Path) -> CheckpointState:
    """Load weights, optimiser and random state into a learner that was built from any directory of the same architecture."""
    state = read_state(checkpoint)
    learner.announce_restore(checkpoint)
    if learner.config.lora.rank:  # the model's own weights never changed
        learner.load_adapters(_load(checkpoint / "adapters.pt", "adapters", "learner.lora.rank = 0"))
    else:
        _load_weights(learner, checkpoint)
    learner.load_optimizer_state(torch.load(checkpoint / "optimizer.pt", weights_only=True))
    if learner.critic is not None:
        learner.load_critic_state(_load(checkpoint / "critic.pt", "a critic", 'learner.critic.kind = "none"'))
    if (checkpoint / "random.pt").is_file():
        _set_random_state(torch.load(checkpoint / "random.pt", weights_only=True))
    learner.policy_version = state.policy_version
    return state


def _random_state() -> dict[str, Any]:
    """Of torch's generators, which dropout and a loss of the user's own may draw from."""
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


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
