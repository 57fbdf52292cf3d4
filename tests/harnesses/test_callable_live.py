"""Agents that are Python functions, in both modes, in real sandboxes, against a scripted model."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from both_modes import SECRET, as_process, spec_for
from model_stub import ModelStub, bash, error, text

from whippletree import sandboxes
from whippletree.errors import SandboxError
from whippletree.harnesses.python_callable import PythonCallable
from whippletree.protocols import AttemptSpec, HarnessResult

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "own_agent")
SETTINGS = {"function": "agent:solve", "path": EXAMPLE, "step_limit": 4}

ODD = """
import asyncio, openai

async def slow(context):
    client = openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key)
    done = await asyncio.to_thread(context.run, "printf 'a\\\\n'; env | grep -c SECRET_KEY; sleep 60", 5)
    answer = await client.chat.completions.create(model=context.model, messages=[{"role": "user", "content": done.output}])
    return f"{answer.choices[0].message.content} {done.exit_code} {done.timed_out}"

def broken(context):
    context.run("true")
    raise LookupError("nothing is here")
"""


async def process(box: sandboxes.Box, spec: AttemptSpec, tmp_path: Path) -> HarnessResult:
    result, _ = await as_process(PythonCallable().configured(spec.settings), box, spec, tmp_path)
    return result


@pytest.fixture
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.usefixtures("own_path")
async def test_both_modes_send_the_same_requests(stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    script = [bash("echo 42 > note; cat note"), bash("kill -9 $$", "pwd | wc -l"), text("it is 42")]
    stub.script = {"pooled": script, SECRET: script}
    pooled = await boxes("pooled", gateway_port=0)
    alone = await boxes("alone", read_only=PythonCallable().configured(SETTINGS).read_only)
    result, lone = await asyncio.gather(
        asyncio.to_thread(PythonCallable().run, spec_for(pooled, stub, "pooled", tmp_path, **SETTINGS)),
        process(alone, spec_for(alone, stub, SECRET, tmp_path, inside=True, **SETTINGS), tmp_path),
    )
    assert result == HarnessResult(exit_status="Returned", steps=3, message="it is 42")
    assert lone == result
    assert stub.seen["pooled"] == stub.seen[SECRET]
    last = stub.seen[SECRET][-1]["messages"]
    assert [message["content"] for message in last if message["role"] == "tool"] == ["42\n", "", "1\n"]
    assert await pooled.read("/app/note") == await alone.read("/app/note") == b"42\n"


@pytest.mark.usefixtures("own_path")
async def test_the_step_limit_and_errors_of_the_model(stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    stub.script = {"spent": [bash("true")], "refused": [error(400, "no such thing")]}
    pooled, alone = (
        await boxes("p", gateway_port=0),
        await boxes("a", read_only=PythonCallable().configured(SETTINGS).read_only),
    )
    spent = await asyncio.to_thread(PythonCallable().run, spec_for(pooled, stub, "spent", tmp_path, **SETTINGS))
    assert (spent.exit_status, spent.steps, spent.ran_out, spent.crashed) == ("OutOfSteps", 4, "budget", False)
    refused = await process(alone, spec_for(alone, stub, "refused", tmp_path, inside=True, **SETTINGS), tmp_path)
    assert (refused.exit_status, refused.crashed) == ("BadRequestError", True)
    assert "no such thing" in refused.message


@pytest.mark.usefixtures("own_path")
async def test_coroutines_time_limits_and_what_a_function_raises(stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "wt_odd_agent.py").write_text(ODD)
    stub.script = {"one": [text("so")], "two": [text("so")]}
    settings = {"function": "wt_odd_agent:slow", "path": str(folder)}
    pooled, alone = await boxes("p"), await boxes("a", read_only=PythonCallable().configured(settings).read_only)
    result = await asyncio.to_thread(PythonCallable().run, spec_for(pooled, stub, "one", tmp_path, **settings))
    assert result == HarnessResult(exit_status="Returned", steps=0, message="so 124 True")
    assert await process(alone, spec_for(alone, stub, "two", tmp_path, inside=True, **settings), tmp_path) == result
    assert stub.seen["one"][0]["messages"] == stub.seen["two"][0]["messages"] == [{"role": "user", "content": "a\n0\n"}]
    broken = spec_for(pooled, stub, "one", tmp_path, **(settings | {"function": "wt_odd_agent:broken"}))
    raised = await asyncio.to_thread(PythonCallable().run, broken)
    assert (raised.exit_status, raised.crashed) == ("LookupError", True) and "nothing is here" in raised.message
    await pooled.stop()
    with pytest.raises(SandboxError):
        await asyncio.to_thread(PythonCallable().run, broken)
    assert json.dumps(stub.seen).count("wt_odd") == 0
