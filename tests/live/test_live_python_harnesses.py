"""Real harnesses that are Python packages, unmodified, against the gateway and a scripted engine, and their own records."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from live_world import COMMAND, FINAL, Told, World, living, turn

from whippletree.harnesses import load_harness
from whippletree.harnesses.installing import is_installed

INSTALLED = Path(os.environ.get("WHIPPLETREE_HARNESSES", "."))
EDIT = "I create the file.\n\nout.txt\n```\namber-birch\n```\n"

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]


@pytest.fixture
async def world(tmp_path: Path, model_dir: Path) -> AsyncIterator[World]:
    async with living(tmp_path, model_dir, INSTALLED) as made:
        yield made


def need(name: str) -> None:
    if not is_installed(load_harness(name, INSTALLED), INSTALLED):
        pytest.skip(f"{name} is not in WHIPPLETREE_HARNESSES (make env-harnesses HARNESSES={name})")


def acting(*, thought: str, tool: str, last: str = FINAL):
    """A call of the tool first; the last turn once its output is there."""
    first = turn("I write the file.", (tool, {"command": COMMAND}), thought=thought)
    return lambda text: last if "<tool_response>" in text.rpartition("<|im_start|>user")[2] else first


def assert_captured(told: Told, dialect: str, *, main: int, side: int = 0) -> None:
    """Every call delivered and in one thread, and each of the harness's own turns found again."""
    roles = [node.role for node in told.trace.nodes]
    assert (roles.count("main"), roles.count("side"), len(roles)) == (main, side, main + side), told
    assert all(call.dialect == dialect and call.delivered and not call.error for call in told.calls), told
    calls = [node.call for node in told.trace.nodes if node.role == "main"]
    assert [call.parent_call_id for call in calls[1:]] == [call.call_id for call in calls[:-1]], told
    assert not any(call.prefix_break for call in calls[1:]), told
    assert told.account is not None and len(told.account.pairs) == main, told
    assert [finding for finding in told.account.findings if finding.level != "INFO"] == [], told


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
async def test_mistral_vibe_is_captured_whole_and_tells_the_same(dialect: str, world: World, tmp_path: Path):
    need("mistral-vibe")
    world.answer = acting(thought="the file is missing", tool="bash")
    told = await world.run("mistral-vibe", tmp_path, dialect=dialect, prompt="minimal")
    assert told.written == b"amber-birch\n", told
    assert (told.end.result.exit_status, told.end.result.steps, told.end.result.crashed) == ("finished", 2, False)
    assert_captured(told, dialect, main=2)


async def test_openhands_is_captured_whole_and_tells_the_same(world: World, tmp_path: Path):
    """It sends reasoning back for models of which it knows that they want that."""
    need("openhands")
    finish = turn("It is written.", ("finish", {"message": "Done."}))
    world.answer = acting(thought="the file is missing", tool="terminal", last=finish)
    told = await world.run("openhands", tmp_path, timeout=240, treat_as="kimi-k2-thinking")
    assert told.written == b"amber-birch\n", told
    assert (told.end.result.exit_status, told.end.result.steps, told.end.result.crashed) == ("finished", 2, False)
    assert_captured(told, "chat", main=2)


async def test_openhands_without_reasoning_and_with_few_tools(world: World, tmp_path: Path):
    need("openhands")
    world.answer = acting(thought="", tool="terminal")
    told = await world.run(
        "openhands", tmp_path, timeout=240, tools=["terminal"], system_prompt="You are short.", condense_at=0
    )
    assert told.written == b"amber-birch\n", told
    assert (told.end.result.exit_status, told.end.result.crashed) == ("finished", False)
    assert_captured(told, "chat", main=2)
    assert "You are short." in world.prompts[0] and "file_editor" not in world.prompts[0]


@pytest.mark.parametrize("stream", [True, False])
async def test_aider_is_captured_whole_with_its_commit_message_apart(stream: bool, world: World, tmp_path: Path):
    need("aider")
    world.answer = lambda text: "feat: write a file" if "commit message" in text else EDIT
    told = await world.run("aider", tmp_path, stream=stream)
    assert told.written == b"amber-birch\n", told
    assert (told.end.result.exit_status, told.end.result.steps, told.end.result.crashed) == ("Done", 1, False)
    assert "feat: write a file" in told.log and "githubusercontent" not in told.log
    assert_captured(told, "chat", main=1, side=1)


async def test_aider_without_commits_asks_once(world: World, tmp_path: Path):
    need("aider")
    world.answer = lambda text: EDIT
    told = await world.run("aider", tmp_path, commits=False, map_tokens=0)
    assert told.written == b"amber-birch\n", told
    assert_captured(told, "chat", main=1)


@pytest.mark.parametrize(
    ("name", "settings"), [("mistral-vibe", {"prompt": "minimal"}), ("openhands", {"tools": ["terminal"]})]
)
async def test_a_step_limit_ends_the_attempt_as_out_of_budget(
    name: str, settings: dict[str, object], world: World, tmp_path: Path
):
    need(name)
    facts = load_harness(name).facts
    numbers = itertools.count()
    world.answer = lambda text: turn(f"Command {next(numbers)}.", (facts.shell_tool, {"command": f"echo {next(numbers)}"}))
    told = await world.run(name, tmp_path, timeout=240, step_limit=3, **settings)
    assert (told.end.result.ran_out, told.end.result.crashed) == ("budget", False), told
    assert len(told.calls) == 3 == told.end.result.steps, told
    assert_captured(told, "chat", main=3)
