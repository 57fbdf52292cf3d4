"""What the page says of the prompts of real harnesses, by the tokenizer that the experiment's model gets."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from experiments.multi_harness import capture
from experiments.multi_harness.__main__ import HERE
from whippletree.configuration import load
from whippletree.learner.captured import Surroundings, captured_messages, load_captured, opening
from whippletree.learner.tiny import TinyConfig, train_tokenizer
from whippletree.loop.config import RunConfig
from whippletree.loop.models import TinyModel
from whippletree.rendering.config import RenderingConfig
from whippletree.rendering.template import load_template
from whippletree.tasks.demonstrator import sloppy_turns
from whippletree.tasks.trail import TrailStream

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/models.md").read_text(encoding="utf-8")
SHOWN = {"mini": "mini-SWE-agent", "codex": "Codex", "claude-code": "Claude Code", "pi": "pi"}
AROUND = Surroundings(date="2026-11-30", kernel="6.1.0-18-amd64")


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> TinyConfig:
    monkeypatch.chdir(ROOT)  # the run file's formats are relative to it
    model = load(RunConfig, HERE / "multi.toml").model
    assert isinstance(model, TinyModel)
    return model.tiny


def test_tokens_of_the_prompts(config: TinyConfig) -> None:
    tokenizer = train_tokenizer(config)
    assert tokenizer.get_vocab_size() == 8192 and "At a vocabulary of 8,192" in PAGE
    template = load_template(Path(), RenderingConfig(template="tiny", options={"whole_tools": True}))
    stream = TrailStream(config.family)
    trail = next(found for number in range(9) if (found := stream.train(number)).depth == 3)
    turns = sloppy_turns(trail, config.family, random.Random(0), 1.0)
    for name, shown in SHOWN.items():
        format = load_captured(capture.FORMATS / f"{name}.json")
        first = template.render(opening(format, trail.instruction, AROUND), format.tools, generation_prompt=True)
        messages = captured_messages(format, trail, turns, AROUND, random.Random(0))
        whole = len(tokenizer.encode(template.render(messages, format.tools, generation_prompt=False)).ids)
        begun = len(tokenizer.encode(first).ids)
        found = re.search(rf"^\| {re.escape(shown)} \| ([0-9,]+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
        assert found is not None, shown
        said = [int(number.replace(",", "")) for number in found.groups()]
        assert said == pytest.approx([len(first), begun, whole - begun], abs=4), shown  # days, ids and durations differ


def test_the_run_file_has_every_captured_harness(config: TinyConfig) -> None:
    run = load(RunConfig, HERE / "multi.toml")
    formats = [load_captured(Path(format.captured)) for format in config.formats]
    assert [format.harness for format in formats] == [source.harness.name for source in run.sources]
    assert {source.name for source in run.sources} == set(SHOWN)
