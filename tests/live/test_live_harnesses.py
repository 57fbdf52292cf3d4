"""Real, unmodified coding agents against the gateway and a scripted engine, in sandboxes whose only way out is the gateway.

They are launched by their adapters and the process launcher of attempts. What is looked at is the record: every reply
delivered, the second call going on from the first one's ids, one sample with both turns, side calls kept apart; and what the
agent itself recorded, which must tell of exactly the captured calls.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from live_world import FINAL, PROMPT, Told, World, living, turn

from whippletree.engines.scripted import Faults
from whippletree.harnesses import load_harness
from whippletree.protocols import HarnessFacts
from whippletree.traces import build_samples

INSTALLED = os.environ.get("WHIPPLETREE_HARNESSES", "")

pytestmark = [
    pytest.mark.harness,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not INSTALLED, reason="set WHIPPLETREE_HARNESSES to where `make env-harnesses` put the agents"),
]

PLAIN: list[tuple[str, dict[str, object]]] = [
    ("claude-code", {}),
    ("claude-code", {"profile": "bare"}),
    ("claude-code", {"profile": "full"}),
    ("codex", {}),
    ("codex", {"profile": "full"}),
    ("mini-swe-agent", {"step_limit": 4}),
    ("gemini-cli", {}),
    *(("opencode", {"dialect": dialect}) for dialect in ("chat", "messages")),
    ("opencode", {"title": True}),
    *(("pi", {"dialect": dialect}) for dialect in ("chat", "responses", "messages", "gemini")),
    *(("qwen-code", {"dialect": dialect}) for dialect in ("chat", "messages")),
]
KEEPS_GOING = {"mini-swe-agent"}  # plain text does not end it: it is asked for a command again


@pytest.fixture
async def world(tmp_path: Path, model_dir: Path) -> AsyncIterator[World]:
    async with living(tmp_path, model_dir, Path(INSTALLED)) as made:
        yield made


def agree(told: Told) -> None:
    """The agent's own account tells of exactly the captured calls, but for side calls and what came to nothing."""
    assert told.account is not None, told
    assert [finding for finding in told.account.findings if finding.level != "INFO"] == [], told
    main = [node for node in told.trace.nodes if node.role in ("main", "subagent") and not node.call.error]
    assert told.account.turns == len(told.account.pairs) >= len(main), told


@pytest.mark.parametrize(("name", "settings"), PLAIN, ids=[f"{name}-{'-'.join(map(str, s.values()))}" for name, s in PLAIN])
async def test_an_unmodified_agent_is_captured_whole(
    name: str, settings: dict[str, object], world: World, tmp_path: Path
) -> None:
    harness = load_harness(name)
    world.act(harness)
    told = await world.run(name, tmp_path, **settings)
    assert told.written == b"amber-birch\n", told
    main = [node.call for node in told.trace.nodes if node.role == "main"]
    side = [node.call for node in told.trace.nodes if node.role == "side"]
    if name not in KEEPS_GOING:
        assert (told.end.result.exit_status, told.end.result.crashed, len(main)) == ("Completed", False, 2), told
        assert told.end.result.message == FINAL
    assert len(main) + len(side) == len(told.calls) and bool(side) == bool(harness.facts.side_calls or settings.get("title")), (
        told
    )
    dialect = settings.get("dialect", harness.facts.dialects[0])
    assert all(call.dialect == dialect and call.delivered and not call.error for call in told.calls), told
    assert main[1].parent_call_id == main[0].call_id and main[1].prefix_break == "", told
    ids = {call.call_id for call in main}
    samples = [one for one in build_samples(told.trace, world.store.rollout("r0").spec) if ids & set(one.call_ids)]
    assert samples[0].call_ids[:2] == (main[0].call_id, main[1].call_id)
    assert sum(int(sample.trained.sum()) for sample in samples) == sum(call.sampled_tokens for call in main)
    assert len(samples) == 1 or name in KEEPS_GOING
    agree(told)


@pytest.mark.parametrize("name", ["claude-code", "codex", "pi"])
async def test_an_agent_survives_an_engine_that_fails_once_and_then_breaks_a_stream(
    name: str, world: World, tmp_path: Path
) -> None:
    world.act(load_harness(name))
    world.engine.faults = Faults(unavailable=1, first_token_seconds=0.5)
    told = await world.run(name, tmp_path)
    assert (told.end.result.exit_status, told.written) == ("Completed", b"amber-birch\n"), told
    assert [call.finish_reason for call in told.calls if call.role == "main"] == ["tool_calls", "stop"]
    agree(told)


CHILD = "CHILDTASK: run `echo child` and stop."


def delegating(spawn: tuple[str, dict[str, object]], wait: str, child: str, argument: str) -> Callable[[str], str]:
    """A model that delegates, waits where the agent has a tool for it, and ends; its sub-agent runs one command."""

    def answer(text: str) -> str:
        if CHILD in text and PROMPT not in text:
            return (
                turn("The child is done.") if "<tool_response>" in text else turn("I look.", (child, {argument: "echo child"}))
            )
        if "<tool_response>" not in text:
            return turn("I delegate.", spawn)
        found = re.search(r'"agent_id":"([0-9a-f-]{36})"', text)
        if wait and found and "I wait." not in text:
            return turn("I wait.", (wait, {"targets": [found[1]], "timeout_ms": 120_000}))
        return FINAL

    return answer


@pytest.mark.parametrize(
    ("name", "spawn", "wait", "settings"),
    [
        (
            "claude-code",
            ("Agent", {"description": "look", "prompt": CHILD, "subagent_type": "general-purpose"}),
            "",
            {"environment": {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"}},
        ),
        ("codex", ("multi_agent_v1__spawn_agent", {"message": CHILD}), "multi_agent_v1__wait_agent", {}),
    ],
    ids=["claude-code", "codex"],
)
async def test_sub_agents_are_attributed_and_told_of(
    name: str, spawn: tuple[str, dict[str, object]], wait: str, settings: dict[str, object], world: World, tmp_path: Path
) -> None:
    facts = load_harness(name).facts
    world.answer = delegating(spawn, wait, facts.shell_tool, facts.shell_argument)
    told = await world.run(name, tmp_path, profile="full", **settings)
    assert told.end.result.exit_status == "Completed", told
    roles = [node.role for node in told.trace.nodes]
    assert roles.count("subagent") == 2 and roles.count("main") == (3 if wait else 2), told
    agree(told)
    account = json.loads((tmp_path / "attempt" / "account.json").read_text())
    (below,) = account["subagent_trajectories"]
    results = [one for step in account["steps"] for one in (step.get("observation") or {"results": []})["results"]]
    assert below["trajectory_id"] in [
        ref["trajectory_id"] for one in results for ref in one.get("subagent_trajectory_ref") or []
    ]


def endless(facts: HarnessFacts) -> Callable[[str], str]:
    """A model that always calls the shell tool where it is offered."""
    call = (facts.shell_tool, {facts.shell_argument: "date", **facts.shell_extra})
    return lambda text: turn("Again.", call) if f'"{facts.shell_tool}"' in text else FINAL


@pytest.mark.parametrize("name", ["claude-code", "mini-swe-agent", "pi", "gemini-cli", "opencode", "qwen-code"])
async def test_a_step_limit_ends_the_attempt_as_out_of_budget(name: str, world: World, tmp_path: Path) -> None:
    world.answer = endless(load_harness(name).facts)
    told = await world.run(name, tmp_path, step_limit=3)
    assert (told.end.result.ran_out, told.end.result.crashed) == ("budget", False), told
    assert len([call for call in told.calls if call.role == "main"]) == 3 == told.end.result.steps, told
    agree(told)


@pytest.mark.parametrize("name", ["claude-code", "codex", "mini-swe-agent", "pi"])
async def test_a_prompt_that_never_fits_is_told_from_an_end(name: str, tmp_path: Path, model_dir: Path) -> None:
    async with living(tmp_path, model_dir, Path(INSTALLED), context=10) as world:
        told = await world.run(name, tmp_path)
    result = told.end.result
    assert result.exit_status.startswith("ContextWindowExceeded") and not result.crashed, told
    assert result.ran_out == ("" if name == "mini-swe-agent" else "budget") and told.calls == [], told


@pytest.mark.parametrize("name", ["codex", "pi"])
async def test_an_agent_that_goes_on_beyond_its_limit_is_stopped_and_told_of(name: str, world: World, tmp_path: Path) -> None:
    world.answer = endless(load_harness(name).facts)
    told = await world.run(name, tmp_path, timeout=30)
    assert told.end.timed_out and len(told.calls) > 1, told
    assert told.account is not None and told.account.worst in (None, "INFO", "WARN"), told


async def test_commands_of_codex_run_without_the_key(world: World, tmp_path: Path) -> None:
    look = turn("I look.", ("exec_command", {"cmd": "env | grep -c KEY= > out.txt; echo seen"}))
    world.answer = lambda text: FINAL if "<tool_response>" in text else look
    told = await world.run("codex", tmp_path)
    assert told.written == b"0\n", told


LEAN = {"claude-code": {"Bash", "Read", "Edit", "Write"}, "codex": {"exec_command", "write_stdin"}}


@pytest.mark.parametrize(
    ("name", "settings", "tools"),
    [
        ("pi", {"tools": ["bash", "ls"]}, {"bash", "ls"}),
        ("claude-code", {"tools": ["Bash", "Read"]}, {"Bash", "Read"}),
        ("claude-code", {}, LEAN["claude-code"]),
        ("codex", {}, LEAN["codex"]),
    ],
)
async def test_settings_reach_the_prompt(
    name: str, settings: dict[str, object], tools: set[str], world: World, tmp_path: Path
) -> None:
    """The tools and the system prompt that settings name are what the model gets."""
    told = await world.run(name, tmp_path, **settings, system_prompt="You are \u201cterse\u201d.", system_append="Be kind.")
    assert told.end.result.exit_status == "Completed", told
    assert "You are \u201cterse\u201d." in world.prompts[0] and "Be kind." in world.prompts[0], told
    assert set(re.findall(r'"function": \{"name": "(\w+)"', world.prompts[0])) == tools


@pytest.mark.parametrize(
    ("name", "tools"),
    [
        ("gemini-cli", {"run_shell_command", "read_file"}),
        ("opencode", {"bash", "read"}),
        ("qwen-code", {"run_shell_command", "read_file"}),
    ],
)
async def test_tools_and_system_prompts_may_be_varied(name: str, tools: set[str], world: World, tmp_path: Path) -> None:
    """The record is compared too: another system prompt and fewer tools change nothing of it."""
    world.act(load_harness(name))
    told = await world.run(name, tmp_path, tools=sorted(tools), system_prompt="You are \u201cterse\u201d, today.")
    assert (told.end.result.exit_status, told.written) == ("Completed", b"amber-birch\n"), told
    assert "You are \u201cterse\u201d, today." in world.prompts[0], told
    assert set(re.findall(r'"function": \{"name": "(\w+)"', world.prompts[0])) == tools
    agree(told)
