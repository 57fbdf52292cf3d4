"""What the tiny model is warmed up on is what the experiments' harnesses send: each one runs, and its requests are compared."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from model_stub import ModelStub, raw, text

from whippletree.configuration import load
from whippletree.gateway.dialects import Target
from whippletree.gateway.dialects.chat import ChatDialect
from whippletree.harnesses import load_harness
from whippletree.learner.transcripts import TranscriptFormat, transcripts
from whippletree.loop.config import RunConfig
from whippletree.loop.models import TinyModel
from whippletree.protocols import AttemptSpec, PoolHarness
from whippletree.rendering.config import RenderingConfig
from whippletree.rendering.template import load_template
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.demonstrator import Turn, sloppy_turns
from whippletree.tasks.trail import Trail, TrailStream, task_texts

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FAMILY = TrailFamily(depths=(3,))
TEMPLATE = load_template(Path(), RenderingConfig(template="tiny"))
LOST = 5


def run_files() -> list[tuple[str, RunConfig]]:
    return [(path.stem, load(RunConfig, path)) for path in sorted(EXPERIMENTS.glob("*/*.toml"))]


def formats(config: RunConfig) -> tuple[TranscriptFormat, ...]:
    assert isinstance(config.model, TinyModel)
    return config.model.tiny.transcript_formats


CASES = [  # those that were captured from a harness: tests/live/test_live_capture.py
    (f"{name}-{source.name}", config, number)
    for name, config in run_files()
    for number, source in enumerate(config.sources)
    if not formats(config)[number].captured
]


def answer(format: TranscriptFormat, command: str) -> Any:
    if format.mode == "text":
        return text(format.command.replace("{command}", command))
    return raw(json.dumps({format.argument: command}), name=format.tool)


async def asked(
    boxes: Any, box: str, stub: ModelStub, trail: Trail, adapter: str, settings: dict[str, object], tmp_path: Path
) -> list[str]:
    """What the model is fed at each turn, rendered. `box` is a sandbox's name."""
    harness = load_harness(adapter)
    assert isinstance(harness, PoolHarness)
    harness.load()
    machine = await boxes(box, gateway_port=0)
    for name, content in task_texts(trail, FAMILY).items():
        if name.startswith("environment/files/"):
            (tmp_path / "file").write_text(content)
            await machine.put(tmp_path / "file", f"/app/{Path(name).name}")
    spec = AttemptSpec(
        rollout_id="r",
        attempt=1,
        instruction=trail.instruction,
        base_url=f"http://127.0.0.1:{stub.port}/v1",
        api_key="k",
        model="policy",
        workdir="/app",
        output_dir=str(tmp_path),
        settings=settings,
        sandbox=machine.handle,
    )
    result = await asyncio.to_thread(harness.run, spec)
    assert not result.crashed, result
    requests = [ChatDialect().parse(json.dumps(body).encode(), Target()) for body in stub.seen["k"]]
    return [TEMPLATE.render(request.messages, request.tools, generation_prompt=True) for request in requests]


def expected(trail: Trail, turns: list[Turn], format: TranscriptFormat) -> list[str]:
    """What the warm-up has before each assistant turn."""
    found = []
    for transcript in transcripts(trail, turns, format):
        for number, message in enumerate(transcript.messages):
            if message.role == "assistant":
                found.append(TEMPLATE.render(transcript.messages[:number], transcript.tools, generation_prompt=True))
    return found


@pytest.mark.parametrize(("name", "config", "number"), CASES, ids=[case[0] for case in CASES])
async def test_the_warm_up_is_what_the_harness_sends(
    boxes: Any, stub: ModelStub, tmp_path: Path, name: str, config: RunConfig, number: int
) -> None:
    trail, format, source = TrailStream(FAMILY).train(0), formats(config)[number], config.sources[number]
    for lost in (0.0, 1.0):  # the whole trail and the submission; files at random, some of which are not there
        stub.script, stub.seen = {}, type(stub.seen)(list)
        turns = sloppy_turns(trail, FAMILY, random.Random(2), 1.0, lost=lost, lost_turns=LOST)
        assert not lost or {turn.exit_code for turn in turns} == {0, 1}
        stub.script = {"k": [answer(format, turn.command) for turn in turns]}
        settings = source.harness.settings | {"step_limit": len(turns)}  # what the last one prints is never sent
        sent = await asked(boxes, f"lost-{lost:g}", stub, trail, source.harness.name, settings, tmp_path)
        assert sent == expected(trail, turns, format)


@pytest.mark.parametrize(("name", "config"), run_files(), ids=[name for name, _ in run_files()])
def test_every_source_has_its_format(name: str, config: RunConfig) -> None:
    assert len(formats(config)) == len(config.sources)
