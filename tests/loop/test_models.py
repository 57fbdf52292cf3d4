"""whippletree/loop/models.py"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from whippletree.errors import ConfigurationError
from whippletree.learner.tiny import TinyConfig
from whippletree.learner.warmup import WarmupConfig
from whippletree.loop.models import DirectoryModel, SmolLM2Model, TinyModel, check_family, prepare_model
from whippletree.tasks.config import TrailFamily

TINY = TinyModel(tiny=TinyConfig(hidden_size=32, intermediate_size=64, warmup=WarmupConfig(steps=1, batch=2)))
FAMILY = TINY.tiny.family


def family(**changes: object) -> TrailFamily:
    return msgspec.structs.replace(FAMILY, **changes)


def test_a_tiny_model_is_made_once_and_then_taken_from_the_cache(tmp_path: Path):
    made = prepare_model(TINY, seed=1, cache=tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(before)
    assert prepare_model(TINY, seed=1, cache=tmp_path) == made
    assert {path.name: path.stat().st_mtime_ns for path in made.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == [made.name]


def test_a_directory_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("model", "~/model", str(tmp_path / "model")):
        assert prepare_model(DirectoryModel(path=path), seed=1, cache=tmp_path / "cache") == tmp_path / "model"
    assert not (tmp_path / "cache").exists()


def test_a_directory_without_a_model_is_refused_with_the_next_step(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"has no config\.json") as raised:
        prepare_model(DirectoryModel(path=str(tmp_path)), seed=1, cache=tmp_path)
    assert raised.value.next_step == "give a Hugging Face model directory"


@pytest.mark.parametrize(
    "given",
    [family(), family(train=9), family(heldout=FAMILY.heldout - 1), family(agent_timeout_sec=1.0, verifier_timeout_sec=1.0)],
)
def test_the_tiny_model_takes_its_own_family_with_other_counts_and_limits(given: TrailFamily):
    check_family(TINY, given, "trail")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (family(seed=FAMILY.seed + 1), "seed"),
        (family(depths=(1,)), "depths"),
        (family(decoys=(3,)), "decoys"),
        (family(names=FAMILY.names + 1, codes=FAMILY.codes + 1), "names, codes"),
        (family(heldout=FAMILY.heldout + 1), "heldout"),  # the warm-up may have seen one of them
    ],
)
def test_the_tiny_model_refuses_another_family_and_names_what_differs(given: TrailFamily, named: str):
    with pytest.raises(ConfigurationError, match=f"source trail: tasks.family differs .* in {named}"):
        check_family(TINY, given, "trail")


@pytest.mark.parametrize("model", [SmolLM2Model(), DirectoryModel(path="/m")])
def test_other_models_take_any_family(model: SmolLM2Model | DirectoryModel):
    check_family(model, family(seed=99, depths=(5,)), "trail")
