"""What the warm-up shows the model is what the real harnesses send: each is launched as in `experiments.multi_harness`, and its
conversation is compared, word for word, with the one that its captured format gives."""

from __future__ import annotations

import asyncio
import datetime
import os
import platform
import random
from pathlib import Path

import pytest

from experiments.multi_harness import capture
from whippletree.configuration import load
from whippletree.learner.captured import Surroundings, captured_messages, load_captured
from whippletree.loop.config import RunConfig
from whippletree.rendering.config import RenderingConfig
from whippletree.rendering.template import load_template
from whippletree.tasks.demonstrator import Turn

INSTALLED = os.environ.get("WHIPPLETREE_HARNESSES", "")
CONFIG = load(RunConfig, capture.HERE / "multi.toml", [f"control.harness_directory={INSTALLED}"] if INSTALLED else [])
TEMPLATE = load_template(Path(), RenderingConfig(template="tiny", options={"whole_tools": True}))

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]


def today() -> Surroundings:
    return Surroundings(date=datetime.date.today().isoformat(), kernel=platform.release())


@pytest.mark.parametrize("number", range(len(CONFIG.sources)), ids=[source.name for source in CONFIG.sources])
def test_the_warm_up_is_what_the_harness_sends(number: int, tmp_path: Path) -> None:
    section = CONFIG.sources[number]
    harness = capture.adapter(section, CONFIG)
    if harness.package is not None and harness.package.kind == "npm" and not INSTALLED:
        pytest.skip("set WHIPPLETREE_HARNESSES to where `make env-harnesses` put the agents")
    seen = asyncio.run(capture.observe(section, CONFIG, tmp_path))
    format = load_captured(capture.FORMATS / f"{section.name}.json")
    assert capture.generalise(seen, harness, today()) == format
    turns = [Turn(command, output, code) for command, output, code in seen.commands]
    turns[-1] = Turn(seen.commands[-1][0], "")
    expected = captured_messages(format, seen.trail, turns, today(), random.Random(0))
    places = [place for place, message in enumerate(expected) if message.role == "assistant"]
    assert places[-1] == len(seen.messages)  # the last request
    for place in places:
        sent = TEMPLATE.render(seen.messages[:place], seen.tools, generation_prompt=True)
        shown = TEMPLATE.render(expected[:place], format.tools, generation_prompt=True)
        assert capture.quiet(sent) == capture.quiet(shown)
