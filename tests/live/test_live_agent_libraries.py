"""The callable adapter with real agent libraries, in process mode, against the gateway and a scripted engine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from live_world import COMMAND, World, living, turn

PYTHON = os.environ.get("WHIPPLETREE_AGENTS_PYTHON", "")
LIBRARIES = str(Path(__file__).parents[2] / "examples" / "own_agent" / "libraries")
LAST = "Done, it is written."

pytestmark = [
    pytest.mark.harness,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON, reason="set WHIPPLETREE_AGENTS_PYTHON to the Python that `make env-agents` made"),
]


@pytest.fixture
async def world(tmp_path: Path, model_dir: Path) -> AsyncIterator[World]:
    async with living(tmp_path, model_dir, tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("module", "dialect", "last"),
    [
        ("with_openai_agents", "responses", LAST),
        ("with_langgraph", "chat", LAST),
        ("with_smolagents", "chat", turn("I am done.", ("final_answer", {"answer": LAST}))),
    ],
)
async def test_an_agent_of_a_library_is_captured_whole(module: str, dialect: str, last: str, world: World, tmp_path: Path):
    def answer(text: str) -> str:
        newest = text.rpartition("<|im_start|>user")[2]
        return last if "<tool_response>" in newest or "Observation:" in newest else first

    first = turn("I write the file.", ("bash", {"command": COMMAND}))
    world.answer = answer
    told = await world.run("callable", tmp_path, function=f"{module}:solve", path=LIBRARIES, python=PYTHON, step_limit=6)
    assert told.written == b"amber-birch\n", told
    result = told.end.result
    assert (result.exit_status, result.message, result.crashed) == ("Returned", LAST, False), told
    assert len(told.calls) == 2 and all(call.dialect == dialect and call.delivered for call in told.calls), told
    assert {node.role for node in told.trace.nodes} == {"main"} and not any(call.error for call in told.calls), told
    if module != "with_smolagents":  # whose tool calls come back as text
        assert told.calls[1].parent_call_id == told.calls[0].call_id, told
