"""whippletree/loop/sft/encoding.py: examples as samples of a model, samples as updates."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_run import write_tokenizer
from sft_parts import SOLVED, recording

from whippletree.errors import ConfigurationError
from whippletree.loop.sft.config import ExportConfig
from whippletree.loop.sft.encoding import Encoded, data_files, encode, split, updates
from whippletree.loop.sft.examples import Origin, to_message, to_tool
from whippletree.loop.sft.exporting import export, read_chat
from whippletree.rendering import RenderingConfig, load_renderer

TINY = RenderingConfig(template="tiny")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sft")
    with recording(root / "demo") as (recorder, _):
        recorder.rollout("a", SOLVED)
        recorder.rollout("b", ["cat birch", "cat cedar", "submit 42"], text="I look.")
    write_tokenizer(root / "model")
    export([root / "demo"], root / "chat", ExportConfig())
    export([root / "demo"], root / "tokens", ExportConfig(format="tokens"))
    return root


def chat(exported: Path, **settings) -> Encoded:
    return encode(data_files([str(exported / "chat")]), exported / "model", TINY, **({"longest": 10_000} | settings))


def test_the_reply_alone_is_trained_behind_what_the_gateway_would_feed(exported: Path):
    encoded = chat(exported)
    renderer = load_renderer(exported / "model", TINY)
    lines = read_chat(exported / "chat" / "chat.jsonl")
    assert len(encoded.samples) == len(lines) == 5 and not encoded.dropped
    for line, sample in zip(lines, encoded.samples.values(), strict=True):
        *before, reply = (to_message(message) for message in line.messages)
        prompt = renderer.render(before, [to_tool(tool) for tool in line.tools])
        assert sample.token_ids[: len(prompt)].tolist() == prompt
        assert np.flatnonzero(sample.trained).tolist() == list(range(len(prompt), len(sample.token_ids)))
        said = renderer.decode(sample.token_ids[len(prompt) :].tolist())
        assert said.endswith("<|im_end|>") and reply.tool_calls[0].name in said and reply.content in said


def test_tokens_are_taken_as_they_are(exported: Path):
    encoded = encode(data_files([str(exported / "tokens" / "tokens.parquet")]), exported / "model", TINY, longest=10_000)
    assert [int(sample.trained.sum()) for sample in encoded.samples.values()] == [12, 18]
    sample = encoded.samples["demo/b.2"]
    assert sample.token_ids[np.flatnonzero(sample.trained)].tolist() == [*range(20, 26)] * 3
    assert (sample.rollout_id, sample.group_id) == ("demo/b", "trail/task-b")


def test_what_cannot_be_written_or_is_too_long_is_counted(exported: Path, tmp_path: Path):
    shortest = min(len(sample.token_ids) for sample in chat(exported).samples.values())
    encoded = chat(exported, longest=shortest)
    assert encoded.dropped == {"longer than sft.longest": 5 - len(encoded.samples)} and encoded.samples
    without = tmp_path / "plain.jinja"
    without.write_text("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}")
    refused = encode(
        data_files([str(exported / "chat")]), exported / "model", RenderingConfig(template=str(without)), longest=10_000
    )
    assert not refused.samples and sum(refused.dropped.values()) == 5


def test_data_that_is_no_export_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"holds no chat\.jsonl"):
        data_files([str(tmp_path)])


def test_a_directory_with_both_formats_is_refused_and_either_file_is_taken(exported: Path, tmp_path: Path):
    for form in ("chat", "tokens"):
        export([exported / "demo"], tmp_path, ExportConfig(format=form))
    with pytest.raises(ConfigurationError, match=r"holds chat\.jsonl and tokens\.parquet.*name one of them"):
        data_files([str(tmp_path)])
    both = [str(tmp_path / name) for name in ("chat.jsonl", "tokens.parquet")]
    assert [str(path) for path in data_files(both)] == both


def made(rollouts: list[tuple[str, int]]) -> Encoded:
    """One sample of each rollout's task, with so many trained tokens."""
    encoded = Encoded()
    for number, (task, trained) in enumerate(rollouts):
        origin = Origin(
            run="r", rollout_id=f"{task}-{number // 2}", source="s", task_id=task, harness="h", reward=1.0, tokens=trained
        )
        encoded.add(f"n{number}", origin, np.arange(trained + 1, dtype=np.int32), np.arange(trained + 1) > 0)
    return encoded


rollouts = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 20)), min_size=1, max_size=25)


@given(rollouts, st.sampled_from([0.0, 0.05, 0.5, 0.9]), st.integers(0, 3))
def test_whole_tasks_are_held_out(found, share, seed):
    encoded = made(found)
    learned, held = split(encoded, share, seed)
    assert sorted([*learned, *held]) == sorted(encoded.samples)
    tasks = [{encoded.samples[name].group_id for name in names} for names in (learned, held)]
    assert not tasks[0] & tasks[1] and tasks[0]
    assert bool(held) == (share > 0 and len(tasks[0] | tasks[1]) > 1)
    assert split(encoded, share, seed) == (learned, held)


@given(rollouts, st.integers(1, 3), st.integers(1, 60), st.integers(0, 3))
def test_every_sample_is_in_one_update_of_each_epoch_with_its_rollout(found, epochs, batch_tokens, seed):
    encoded = made(found)
    names = list(encoded.samples)
    every = updates(encoded, names, epochs=epochs, batch_tokens=batch_tokens, seed=seed)
    assert every == updates(encoded, names, epochs=epochs, batch_tokens=batch_tokens, seed=seed)
    assert Counter(name for batch in every for name in batch) == dict.fromkeys(names, epochs)
    for batch in every:
        assert len(set(batch)) == len(batch)
    for batch in every:
        own = {encoded.samples[name].rollout_id for name in batch}
        assert set(batch) == {name for name in names if encoded.samples[name].rollout_id in own}
