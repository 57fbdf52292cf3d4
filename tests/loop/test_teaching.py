"""whippletree/loop/teaching.py: which teacher is let in, and one that the run starts itself"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from loop_parts import World, by_name, play
from teacher_parts import answering
from tokenizers import Tokenizer

from whippletree.engines.process import Ready
from whippletree.errors import ConfigurationError, ProcessError
from whippletree.loop.config import TeacherConfig
from whippletree.loop.teacher import COLUMN
from whippletree.loop.teaching import TEXT, compare_directories, compare_with_server, opened_teacher
from whippletree.store import open_store
from whippletree.traces import TracesConfig
from whippletree.types import RolloutSpec


@pytest.fixture
def teacher(world: World, tmp_path: Path) -> Path:
    """Other weights, the policy's tokenizer."""
    made = tmp_path / "teacher"
    shutil.copytree(world.other, made)
    shutil.copyfile(world.model / "tokenizer.json", made / "tokenizer.json")
    return made


def test_the_same_tokenizer_is_let_in_and_another_one_is_named(world: World, teacher: Path):
    compare_directories(world.model, teacher)
    file = teacher / "tokenizer.json"
    told: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    vocabulary: dict[str, int] = told["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_bytes(msgspec.json.encode(told))
    with pytest.raises(ConfigurationError, match="another tokenizer than the policy: "):
        compare_directories(world.model, teacher)
    file.unlink()
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json is missing"):
        compare_directories(world.model, teacher)


async def test_a_server_is_asked_how_it_splits_text(world: World):
    ids = Tokenizer.from_file(str(world.model / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids
    asked: list[Any] = []

    def same(path: str, body: Any) -> tuple[int, Any]:
        asked.append((path, body))
        return 200, {"count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": None}

    with answering(same) as url:
        await compare_with_server(world.model, url + "/v1", "policy", "")
    assert asked == [("/tokenize", {"model": "policy", "prompt": TEXT, "add_special_tokens": False})]
    other = "other tokens than the policy"
    with answering(lambda *_: (200, {"tokens": ids[:-1]})) as url, pytest.raises(ConfigurationError, match=other):
        await compare_with_server(world.model, url, "policy", "")
    silent = "does not say how it splits text"
    with answering(lambda *_: (404, {"detail": "Not Found"})) as url, pytest.raises(ConfigurationError, match=silent) as raised:
        await compare_with_server(world.model, url, "policy", "")
    assert "teacher.directory" in raised.value.next_step


def test_an_engine_is_started_for_a_directory_and_ends_with_the_run(world: World, tmp_path: Path, teacher: Path):
    spec = RolloutSpec(rollout_id="g0-m00", group_id="g0", source="s", task_id="t", task_path="/t", harness="h")
    config = TeacherConfig(directory=str(teacher), context=64)
    with open_store(tmp_path / "store") as store:
        store.create_rollouts([spec]).result()
        play(store, by_name)
        with opened_teacher(config, store, TracesConfig(), policy=world.model, directory=tmp_path) as opened:
            ready = msgspec.json.decode((tmp_path / "logs" / "teacher.ready.json").read_bytes(), type=Ready)
            opened.settle(store.rollouts())
        assert len(store.columns("g0-m00", 1, COLUMN)) == 2
    with pytest.raises(ProcessLookupError):
        os.kill(ready.pid, 0)


def test_one_that_does_not_start_says_why(world: World, tmp_path: Path, teacher: Path):
    (teacher / "config.json").write_text("{}")
    config = TeacherConfig(directory=str(teacher))
    with (
        open_store(tmp_path / "store") as store,
        pytest.raises(ProcessError, match="did not start"),
        opened_teacher(config, store, TracesConfig(), policy=world.model, directory=tmp_path),
    ):
        pass


def test_another_tokenizer_is_refused_before_anything_is_started(world: World, tmp_path: Path, teacher: Path):
    (teacher / "tokenizer.json").unlink()
    config = TeacherConfig(directory=str(teacher))
    with (
        open_store(tmp_path / "store") as store,
        pytest.raises(ConfigurationError, match="cannot be compared"),
        opened_teacher(config, store, TracesConfig(), policy=world.model, directory=tmp_path),
    ):
        pass
    assert not (tmp_path / "logs").exists()
