"""Real harnesses that are Python packages, unmodified, against the gateway and a scripted engine, and their own records."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import pytest
from python_parts import COMMAND, Ran, World, make_model, once, serve_world, tool_call

from whippletree.harnesses import load_harness
from whippletree.harnesses.installing import is_installed

INSTALLED = os.environ.get("WHIPPLETREE_HARNESS_DIRECTORY", "")

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]


class Enter(Protocol):
    def __call__(self, harness: str) -> AbstractAsyncContextManager[World]: ...


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def world(request: pytest.FixtureRequest, tmp_path: Path, model_dir: Path) -> AsyncIterator[World]:
    name = request.node.get_closest_marker("of").args[0]
    if not is_installed(load_harness(name, _directory()), _directory()):
        pytest.skip(f"{name} is not installed (whippletree harness install {name}; WHIPPLETREE_HARNESS_DIRECTORY says where)")
    async with serve_world(tmp_path, model_dir, name) as made:
        yield made


def _directory() -> Path | None:
    return Path(INSTALLED) if INSTALLED else None


def assert_captured(world: World, ran: Ran, dialect: str, *, main: int, side: int = 0) -> Any:
    """Every call delivered and in one thread, and each of the harness's own turns found again."""
    trace = world.trace()
    told = f"{ran.output[-3000:]}\n{[(n.call.dialect, n.role, n.call.prefix_break, n.call.error) for n in trace.nodes]}"
    roles = [node.role for node in trace.nodes]
    assert (roles.count("main"), roles.count("side")) == (main, side), told
    assert all(node.call.dialect == dialect and node.call.delivered and not node.call.error for node in trace.nodes), told
    calls = [node.call for node in trace.nodes if node.role == "main"]
    assert [call.parent_call_id for call in calls[1:]] == [call.call_id for call in calls[:-1]], told
    assert not any(call.prefix_break for call in calls[1:]), told
    found = world.reconciled(ran)
    assert [finding for finding in found.findings if finding.level != "INFO"] == [], told
    assert len(found.pairs) == main, found
    return trace


@pytest.mark.of("mistral-vibe")
@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
async def test_mistral_vibe_is_captured_whole_and_tells_the_same(dialect: str, world: World):
    world.answer = once(tool_call("bash", command=COMMAND), "Done, the file is written.")
    ran = await world.run("mistral-vibe", installed=_directory(), dialect=dialect, prompt="minimal")
    assert ran.written == b"amber-birch\n", ran.output[-3000:]
    assert (ran.end.result.exit_status, ran.end.result.steps, ran.end.result.crashed) == ("finished", 2, False)
    assert_captured(world, ran, dialect, main=2)


@pytest.mark.of("openhands")
async def test_openhands_is_captured_whole_and_tells_the_same(world: World):
    """It sends reasoning back for models of which it knows that they want that."""
    world.answer = once(tool_call("terminal", command=COMMAND), tool_call("finish", message="Done."))
    ran = await world.run("openhands", installed=_directory(), treat_as="kimi-k2-thinking")
    assert ran.written == b"amber-birch\n", ran.output[-3000:]
    assert (ran.end.result.exit_status, ran.end.result.steps, ran.end.result.crashed) == ("finished", 2, False)
    assert_captured(world, ran, "chat", main=2)


@pytest.mark.of("openhands")
async def test_openhands_without_reasoning_and_with_few_tools(world: World):
    call = tool_call("terminal", command=COMMAND).partition("</think>\n\n")[2]
    world.answer = once(call, "Done.")
    ran = await world.run(
        "openhands", installed=_directory(), tools=["terminal"], system_prompt="You are short.", condense_at=0
    )
    assert ran.written == b"amber-birch\n", ran.output[-3000:]
    assert (ran.end.result.exit_status, ran.end.result.crashed) == ("finished", False)
    trace = assert_captured(world, ran, "chat", main=2)
    first = trace.nodes[0]
    assert b"You are short." in first.messages_json and all(node.role == "main" for node in trace.nodes)


EDIT = "I create the file.\n\nout.txt\n```\namber-birch\n```\n"


@pytest.mark.of("aider")
@pytest.mark.parametrize("stream", [True, False])
async def test_aider_is_captured_whole_with_its_commit_message_apart(stream: bool, world: World):
    world.answer = lambda prompt: "feat: write a file" if "commit message" in prompt else EDIT
    ran = await world.run("aider", installed=_directory(), stream=stream)
    assert ran.written == b"amber-birch\n", ran.output[-3000:]
    assert (ran.end.result.exit_status, ran.end.result.steps, ran.end.result.crashed) == ("Done", 1, False)
    assert "feat: write a file" in ran.output and "githubusercontent" not in ran.output
    assert_captured(world, ran, "chat", main=1, side=1)


@pytest.mark.of("aider")
async def test_aider_without_commits_asks_once(world: World):
    world.answer = lambda prompt: EDIT
    ran = await world.run("aider", installed=_directory(), commits=False, map_tokens=0)
    assert ran.written == b"amber-birch\n", ran.output[-3000:]
    assert_captured(world, ran, "chat", main=1)
