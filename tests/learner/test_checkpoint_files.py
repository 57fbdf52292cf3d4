"""whippletree/learner/checkpoint.py: what is in a checkpoint, and what is done about a damaged one"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest
import torch
import transformers
from learner_parts import ADVANTAGES, WEIGHTS, make_learner

from whippletree.errors import StoreError
from whippletree.learner import checkpoint
from whippletree.learner.learner import Learner
from whippletree.learner.rows import build_row
from whippletree.types import Sample


def saved(model: Path, directory: Path, steps: int = 2) -> Learner:
    found = make_learner(model)
    for step in range(1, steps + 1):
        checkpoint.save(found, directory, step=step, tokenizer_from=model)
    return found


def flip(file: Path) -> None:
    """Another bit in the middle; the length stays."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "random.pt", "config.json"])
@pytest.mark.parametrize("how", ["changed", "cut", "gone"])
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_used(
    small_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, how: str
):
    saved(small_model, tmp_path)
    file = tmp_path / "step-0002" / name
    if how == "changed":
        flip(file)
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    with pytest.raises(StoreError, match=rf"step-0002/{name} (is damaged|cannot be read)"):
        checkpoint.verify(tmp_path / "step-0002")
    with caplog.at_level(logging.WARNING):
        assert checkpoint.latest(tmp_path) == tmp_path / "step-0001"
    assert f"step-0002/{name}" in caplog.text


def test_a_damaged_state_is_refused_too(small_model: Path, tmp_path: Path):
    saved(small_model, tmp_path)
    (tmp_path / "step-0002" / "state.json").write_bytes(b'{"step":2,')
    assert checkpoint.latest(tmp_path) == tmp_path / "step-0001"


def test_where_all_are_damaged_nothing_begins_anew(small_model: Path, tmp_path: Path):
    saved(small_model, tmp_path)
    for step in (1, 2):
        flip(tmp_path / f"step-000{step}" / "model.safetensors")
    with pytest.raises(StoreError, match=r"step-0002/model\.safetensors is damaged"):
        checkpoint.latest(tmp_path)


def test_every_file_has_its_digest(small_model: Path, tmp_path: Path):
    saved(small_model, tmp_path, steps=1)
    names = {file.name for file in (tmp_path / "step-0001").iterdir()} - {"state.json"}
    assert set(checkpoint.read_state(tmp_path / "step-0001").files) == names
    assert {"model.safetensors", "optimizer.pt", "random.pt", "config.json"} <= names


def test_a_checkpoint_of_before_there_were_digests_is_read(small_model: Path, tmp_path: Path):
    found = saved(small_model, tmp_path, steps=1)
    path = tmp_path / "step-0001"
    state = msgspec.structs.replace(checkpoint.read_state(path), files={})
    (path / "state.json").write_bytes(msgspec.json.encode(state))
    (path / "random.pt").unlink()
    assert checkpoint.latest(tmp_path) == path
    assert checkpoint.restore(found, path).step == 1


def test_random_numbers_go_on_where_they_were(small_model: Path, tmp_path: Path):
    torch.manual_seed(11)
    found = saved(small_model, tmp_path, steps=1)
    expected = torch.rand(3)
    torch.manual_seed(12)
    checkpoint.restore(found, tmp_path / "step-0001")
    assert torch.equal(torch.rand(3), expected)


def test_a_checkpoint_loads_in_transformers_with_the_learners_logprobs(
    small_model: Path, sample_batch: list[Sample], tmp_path: Path
):
    found = make_learner(small_model)
    found.update([build_row(sample_batch, ADVANTAGES, WEIGHTS)])
    path = checkpoint.save(found, tmp_path, step=1, tokenizer_from=small_model)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], -1)
    own = logprobs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    torch.testing.assert_close(own, torch.as_tensor(found.score(ids)), rtol=1e-4, atol=1e-4)
