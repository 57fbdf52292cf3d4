"""The loop of whitebox against a scripted server, commands beside it: what goes to the model, and what ends a run."""

from __future__ import annotations

import ast
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from model_stub import ModelStub, bash, error, raw, reply, text

from whippletree.harnesses import whitebox_loop as loop
from whippletree.harnesses.config import WhiteboxSettings

DONE = "echo $DONE_MESSAGE; echo 42"
SERVER = "500 internal"


def rules(**settings: Any) -> loop.Rules:
    given = {"tool_name": "bash", "observation": "{output}"} | settings
    return loop.Rules(**msgspec.to_builtins(WhiteboxSettings(**given)))


async def run(stub: ModelStub, tmp_path: Path, goal: str = "Find it.", seconds: float = 60.0, **settings: Any) -> loop.Record:
    chosen = rules(**settings)
    model = loop.Model(f"http://127.0.0.1:{stub.port}/v1", "k", "policy", retries=chosen.quick_retries, timeout=30)
    shell = loop.local_shell({"PATH": "/usr/bin:/bin", "DONE_MESSAGE": loop.DONE_MESSAGE}, str(tmp_path))
    agent = loop.Agent(chosen, model, shell)
    try:
        return await asyncio.to_thread(agent.run, goal, time.monotonic() + seconds)
    finally:
        model.close()


def contents(body: dict[str, Any]) -> list[str]:
    return [message["content"] for message in body["messages"]]


def test_it_imports_nothing_but_the_standard_library() -> None:
    tree = ast.parse(Path(loop.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names and {name.split(".")[0] for name in names} <= sys.stdlib_module_names


async def test_each_request_goes_on_from_the_one_before(stub: ModelStub, tmp_path: Path) -> None:
    stub.script = {"k": [bash("echo one", "echo two"), raw('{"command":  "echo 3"}'), bash(DONE)]}
    record = await run(stub, tmp_path)
    assert (record.exit_status, record.message, record.steps, record.compactions) == ("Submitted", "42\n", 3, 0)
    first, second, third = stub.seen["k"]
    assert contents(first) == [WhiteboxSettings().system_prompt, "Find it."]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert third["messages"][: len(second["messages"])] == second["messages"]
    said = third["messages"][-2]
    assert said["tool_calls"][0]["function"]["arguments"] == '{"command":  "echo 3"}'
    assert contents(third)[3:5] == ["one\n", "two\n"] and contents(third)[-1] == "3\n"
    assert [message.get("tool_call_id") for message in third["messages"] if message["role"] == "tool"] == [
        "call_0",
        "call_1",
        "call_0",
    ]
    assert stub.paths == {"/v1/chat/completions"}


async def test_a_turn_goes_back_as_it_came_with_its_thinking(stub: ModelStub, tmp_path: Path) -> None:
    call = {"id": "call_0", "type": "function", "function": {"name": "bash", "arguments": '{"command": "true"}'}}
    said = {"content": "  I look. ", "reasoning_content": "where is it?\n", "tool_calls": [call]}
    stub.script = {"k": [lambda _: reply(said, "tool_calls"), text("ok")]}
    await run(stub, tmp_path)
    assert stub.seen["k"][1]["messages"][2] == {"role": "assistant", **said}


async def test_the_tool_and_the_prompts_are_settings(stub: ModelStub, tmp_path: Path) -> None:
    stub.script = {"k": [raw('{"script": "exit 3"}', name="run"), text("ok")]}
    settings = {
        "system_prompt": "",
        "task": "Do: {task}",
        "tool_name": "run",
        "tool_argument": "script",
        "tool_description": "D",
    }
    await run(stub, tmp_path, goal="a {task}", observation="[{exit_code}] {output}", **settings)
    (tool,) = stub.seen["k"][1]["tools"]
    function = tool["function"]
    assert (function["name"], function["description"], function["parameters"]["required"]) == ("run", "D", ["script"])
    assert contents(stub.seen["k"][1]) == ["Do: a {task}", "", "[3] "]


@pytest.mark.parametrize(("every", "stretches"), [(1, [0, 0, 0, 0]), (2, [0, 1, 0, 1]), (3, [0, 1, 2, 0])])
async def test_a_compaction_keeps_system_prompt_and_task(
    stub: ModelStub, tmp_path: Path, every: int, stretches: list[int]
) -> None:
    stub.script = {"k": [bash("echo a"), bash("echo b"), bash("echo c"), bash(DONE)]}
    record = await run(
        stub, tmp_path, compact_every=every, summary_message="{task}\n{summary}", summary_step="{command}={observation}"
    )
    assert record.exit_status == "Submitted" and record.compactions == 3 // every
    steps = ["echo a=a\n", "echo b=b\n", "echo c=c\n"]
    for number, (body, since) in enumerate(zip(stub.seen["k"], stretches, strict=True)):
        notes = "".join(steps[: number - since])
        asked = f"Find it.\n{notes}" if notes else "Find it."
        assert contents(body)[:2] == [WhiteboxSettings().system_prompt, asked]
        assert len(body["messages"]) == 2 + 2 * since


async def test_the_model_can_be_asked_for_the_summary(stub: ModelStub, tmp_path: Path) -> None:
    stub.script = {"k": [bash("echo a"), text("a was printed"), bash("echo b"), text(""), bash(DONE)]}
    record = await run(stub, tmp_path, compact_every=1, summary="model", summary_request="Sum up.", summary_step="({command})")
    bodies = stub.seen["k"]
    assert contents(bodies[1])[-1] == "Sum up." and bodies[1]["messages"][:2] == bodies[0]["messages"]
    assert bodies[1]["tools"] == bodies[0]["tools"]
    assert contents(bodies[2])[1] == "Find it.\n\nWork so far:\na was printed"
    assert contents(bodies[4])[1] == "Find it.\n\nWork so far:\n(echo a)(echo b)"  # it said nothing: the harness's own
    assert [turn.summary for turn in record.turns] == [False, True, False, True, False]
    assert (record.exit_status, record.steps, record.compactions) == ("Submitted", 5, 2)


async def test_wrong_calls_are_told_to_the_model(stub: ModelStub, tmp_path: Path) -> None:
    wrong = [raw('{"command": "ls'), raw('{"command": 7}'), raw('{"command": "a\\u0000"}'), raw('{"command": "\\ud800"}')]
    stub.script = {"k": [raw("{}", name="python"), *wrong, text("I give up")]}
    record = await run(stub, tmp_path)
    told = contents(stub.seen["k"][-1])[3::2]
    assert (record.exit_status, record.message, len(told)) == ("Answered", "I give up", 5)
    assert "no tool python; use bash" in told[0] and "not valid JSON" in told[1]
    assert all("must be the command line" in line for line in told[2:])


async def test_a_reminder_keeps_it_going(stub: ModelStub, tmp_path: Path) -> None:
    stub.script = {"k": [text("let me think"), bash(DONE)]}
    record = await run(stub, tmp_path, reminder="Call the tool.")
    assert record.exit_status == "Submitted"
    assert stub.seen["k"][1]["messages"][-1] == {"role": "user", "content": "Call the tool."}


async def test_limits_and_a_full_context_are_outcomes(stub: ModelStub, tmp_path: Path) -> None:
    stub.script = {"k": [bash("true")]}
    record = await run(stub, tmp_path, step_limit=3)
    assert (record.exit_status, record.steps) == ("StepLimit", 3)
    record = await run(stub, tmp_path, seconds=-1.0)
    assert (record.exit_status, record.steps) == ("TimeLimit", 0)
    stub.script = {"k": [error(400, "This model's maximum context length is 512 tokens.", "context_length_exceeded")]}
    assert (await run(stub, tmp_path)).exit_status == "ContextFull"


async def test_a_failure_that_may_pass_is_tried_again_unchanged(stub: ModelStub, tmp_path: Path) -> None:
    stub.script = {"k": [error(500, "oops"), error(429, "slow"), text("done")]}
    record = await run(stub, tmp_path)
    assert (record.exit_status, record.steps) == ("Answered", 1)
    assert stub.seen["k"][0] == stub.seen["k"][1] == stub.seen["k"][2]


async def test_a_refusal_and_a_server_that_stays_away_are_errors(stub: ModelStub, tmp_path: Path) -> None:
    stub.script = {"k": [error(401, "sealed")]}
    with pytest.raises(loop.ModelError, match=r"401.*sealed"):
        await run(stub, tmp_path)
    assert len(stub.seen["k"]) == 1
    stub.script["k"] = [error(500, SERVER)]
    with pytest.raises(loop.ModelError, match=SERVER):
        await run(stub, tmp_path, quick_retries=1)
    stub.script["k"] = [lambda _: web.json_response({"choices": []})]
    with pytest.raises(loop.ModelError, match="no chat completion"):
        await run(stub, tmp_path)
    closed = loop.Model("http://127.0.0.1:1/v1", "k", "policy", retries=0, timeout=5)
    with pytest.raises(loop.ModelError, match="no answer"):
        closed.ask([], [])


async def test_long_outputs_lose_their_middle(stub: ModelStub, tmp_path: Path) -> None:
    stub.script = {"k": [bash("seq 1 3000"), text("x")]}
    await run(stub, tmp_path, observation_limit=100)
    shown = contents(stub.seen["k"][1])[-1]
    assert shown.startswith("1\n2\n") and shown.endswith("3000\n") and "characters left out" in shown and len(shown) < 160


def test_commands_end_at_their_limit_and_background_processes_keep_nothing(tmp_path: Path) -> None:
    shell = loop.local_shell({"PATH": "/usr/bin:/bin"}, str(tmp_path))
    assert shell("echo early; sleep 60", 3) == loop.Ran("early\n", 124)
    assert shell("kill -9 $$", 30) == loop.Ran("", -9)
    assert shell("sleep 1 & echo gone; exit 7", 30) == loop.Ran("gone\n", 7)
    assert shell("printf '\\377'", 30).output == "�"


def test_the_record_is_plain_json(tmp_path: Path) -> None:
    record = loop.Record(exit_status="Answered", turns=[loop.Turn(content="x", calls=[{"id": "1"}], results=["y"])])
    loop.write_record(record, tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["turns"][0]["results"] == ["y"] and [path.name for path in tmp_path.iterdir()] == ["r.json"]
