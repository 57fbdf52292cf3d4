"""The callable adapter with real agent libraries, in process mode, against the gateway and a scripted engine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from python_parts import COMMAND, World, make_model, serve_world, tool_call

PYTHON = os.environ.get("WHIPPLETREE_AGENTS_PYTHON", "")
LIBRARIES = str(Path(__file__).parents[2] / "examples" / "own_agent" / "libraries")

pytestmark = [
    pytest.mark.harness,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON, reason="set WHIPPLETREE_AGENTS_PYTHON to the Python that `make env-agents` made"),
]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def world(tmp_path: Path, model_dir: Path) -> AsyncIterator[World]:
    async with serve_world(tmp_path, model_dir, "callable") as made:
        yield made


@pytest.mark.parametrize(
    ("module", "dialect", "last"),
    [
        ("with_openai_agents", "responses", "Done, it is written."),
        ("with_langgraph", "chat", "Done, it is written."),
        ("with_smolagents", "chat", tool_call("final_answer", answer="Done, it is written.")),
    ],
)
async def test_an_agent_of_a_library_is_captured_whole(module: str, dialect: str, last: str, world: World):
    def answer(prompt: str) -> str:
        newest = prompt.rpartition("<|im_start|>user")[2]
        return last if "<tool_response>" in newest or "Observation:" in newest else first

    first = tool_call("bash", command=COMMAND).partition("</think>\n\n")[2]
    world.answer = answer
    ran = await world.run("callable", function=f"{module}:solve", path=LIBRARIES, python=PYTHON, step_limit=6)
    told = f"{ran.output[-3000:]}\n{[(n.call.dialect, n.role, n.call.prefix_break, n.call.error) for n in world.trace().nodes]}"
    assert ran.written == b"amber-birch\n", told
    assert (ran.end.result.exit_status, ran.end.result.message, ran.end.result.crashed) == (
        "Returned",
        "Done, it is written.",
        False,
    ), told
    calls = world.calls()
    assert len(calls) == 2 and all(call.dialect == dialect and call.delivered and not call.error for call in calls), told
    assert {node.role for node in world.trace().nodes} == {"main"}, told
