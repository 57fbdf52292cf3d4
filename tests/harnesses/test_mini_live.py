"""The unmodified mini-SWE-agent, in both modes, in real sandboxes, against a scripted model."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from both_modes import DONE, SECRET, TROUBLES, as_process, spec_for
from both_modes import in_pool as pool
from model_stub import ModelStub, bash, error, text

from whippletree import sandboxes
from whippletree.errors import HarnessError, SandboxError
from whippletree.harnesses.mini_swe_agent import MiniSweAgent
from whippletree.protocols import AttemptSpec, HarnessResult, PoolHarness

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

FENCE = "```mswea_bash_command\n{}\n```"


async def process(box: sandboxes.Box, spec: AttemptSpec, tmp_path: Path) -> tuple[HarnessResult, dict[str, Any]]:
    plan = MiniSweAgent().plan(spec)
    assert spec.api_key not in " ".join(plan.argv) and all(spec.api_key not in content for _, content in plan.files)
    result, trajectory = await as_process(MiniSweAgent(), box, spec, tmp_path)
    assert trajectory is not None, result
    return result, json.loads(trajectory)


SCRIPT = [*TROUBLES, bash(DONE)]


async def test_both_modes_send_the_same_requests(mini: PoolHarness, stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    stub.script = {"pooled": SCRIPT, SECRET: SCRIPT}
    settings = {"command_seconds": 5, "format_error_limit": 0, "step_limit": 20}
    pooled = await boxes("pooled", gateway_port=0)
    alone = await boxes("alone", read_only=mini.read_only)
    (result, _), (lone, trajectory) = await asyncio.gather(
        pool(mini, spec_for(pooled, stub, "pooled", tmp_path / "p", **settings)),
        process(alone, spec_for(alone, stub, SECRET, tmp_path / "q", inside=True, **settings), tmp_path),
    )
    assert result == HarnessResult(exit_status="Submitted", steps=7, message="42\n")
    assert lone == result
    assert SECRET not in json.dumps(trajectory)
    observed = [message["content"] for body in stub.seen["pooled"] for message in body["messages"] if message["role"] == "tool"]
    assert any("<returncode>-9</returncode>" in content for content in observed)
    assert any("a\nb�" in content and "<returncode>3" in content for content in observed)
    assert any("timed out after 5 seconds" in content and "slow" in content for content in observed)
    assert stub.seen["pooled"] == stub.seen[SECRET]
    assert stub.paths == {"/v1/chat/completions"}


async def test_text_mode_in_both_modes_and_a_process_that_nothing_isolates(
    mini: PoolHarness, stub: ModelStub, boxes: Any, tmp_path: Path
) -> None:
    stub.script = {
        "text-one": [text("no command"), text(FENCE.format("echo hi")), text(FENCE.format(DONE))],
        "text-two": [text("no command"), text(FENCE.format("echo hi")), text(FENCE.format(DONE))],
    }
    settings = {"mode": "text", "observation_template": "{{output.output}}", "format_error_template": "one command please"}
    pooled, alone = await boxes("isolated"), await boxes("open", kind="process")
    result, _ = await pool(mini, spec_for(pooled, stub, "text-one", tmp_path, **settings))
    lone, _ = await process(alone, spec_for(alone, stub, "text-two", tmp_path, inside=True, **settings), tmp_path)
    assert result == lone == HarnessResult(exit_status="Submitted", steps=3, message="42\n")
    assert stub.seen["text-one"] == stub.seen["text-two"]
    last = stub.seen["text-one"][-1]
    assert "tools" not in last
    assert [message["content"] for message in last["messages"]] == [
        "You can run shell commands.",
        "Find the code.",
        "one command please",
        FENCE.format("echo hi"),
        "hi\n",
    ]


async def test_a_custom_action_regex(mini: PoolHarness, stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    stub.script = {"k": [text(f"$ {DONE}")]}
    settings = {"mode": "text", "action_regex": r"^\$ (.*)$"}
    assert (await pool(mini, spec_for(await boxes(), stub, "k", tmp_path, **settings)))[0].exit_status == "Submitted"


async def test_the_step_limit_is_an_outcome_not_a_crash(mini: PoolHarness, stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    stub.script = {"k": [bash("true")]}
    result, trajectory = await pool(mini, spec_for(await boxes(), stub, "k", tmp_path, step_limit=3))
    assert (result.exit_status, result.steps, result.crashed) == ("LimitsExceeded", 3, False)
    assert trajectory["info"]["exit_status"] == "LimitsExceeded"


async def test_repeated_format_errors_are_an_outcome(mini: PoolHarness, stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    stub.script = {"k": [text("hello")]}
    result, _ = await pool(mini, spec_for(await boxes(), stub, "k", tmp_path, format_error_limit=2))
    assert (result.exit_status, result.steps, result.crashed) == ("RepeatedFormatError", 2, False)


async def test_a_server_error_is_tried_again_at_once(mini: PoolHarness, stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    stub.script = {"k": [error(500, "oops"), bash(DONE)]}
    result, _ = await pool(mini, spec_for(await boxes(), stub, "k", tmp_path))
    assert (result.exit_status, result.steps) == ("Submitted", 1)
    assert stub.seen["k"][0] == stub.seen["k"][1] and len(stub.seen["k"]) == 2


async def test_a_full_context_is_an_outcome_and_a_refused_key_a_crash(
    mini: PoolHarness, stub: ModelStub, boxes: Any, tmp_path: Path
) -> None:
    message = "This model's maximum context length is 1024 tokens. However, you requested 1100 tokens."
    stub.script = {"full": [error(400, message, "context_length_exceeded")], "no": [error(401, "sealed", "invalid_api_key")]}
    box = await boxes()
    full, _ = await pool(mini, spec_for(box, stub, "full", tmp_path / "a"))
    assert (full.exit_status, full.crashed) == ("ContextWindowExceededError", False)
    refused, trajectory = await pool(mini, spec_for(box, stub, "no", tmp_path / "b"))
    assert (refused.exit_status, refused.crashed) == ("AuthenticationError", True)
    assert "sealed" in refused.message and trajectory["info"]["exit_status"] == "AuthenticationError"
    assert len(stub.seen["full"]) == len(stub.seen["no"]) == 1


async def test_thirty_two_at_once_do_not_mix(mini: PoolHarness, stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    keys = [f"key-{number}" for number in range(32)]
    stub.script = {key: [bash(f"echo {key} > mine"), bash("cat mine"), bash(f"{DONE}; cat mine")] for key in keys}
    rooms = [await boxes(f"many-{number}", gateway_port=0) for number in range(4)]
    assert all(room.handle is not None for room in rooms)
    for key in keys:
        (tmp_path / key).mkdir()
    specs = [spec_for(rooms[index % 4], stub, key, tmp_path / key) for index, key in enumerate(keys)]
    for index, key in enumerate(keys):  # four sandboxes are enough: each key has a directory of its own there
        await rooms[index % 4].exec(("mkdir", key), timeout=10)
    specs = [msgspec.structs.replace(spec, workdir=f"{spec.workdir}/{spec.rollout_id}") for spec in specs]
    loop = asyncio.get_running_loop()
    with concurrent.futures.ThreadPoolExecutor(32) as threads:
        results = await asyncio.gather(*(loop.run_in_executor(threads, mini.run, spec) for spec in specs))
    assert [result.message for result in results] == [f"42\n{key}\n" for key in keys]
    for key in keys:
        assert len(stub.seen[key]) == 3
        assert key in stub.seen[key][2]["messages"][-1]["content"]
        assert key not in json.dumps(json.loads((tmp_path / key / "trajectory.json").read_text())["info"]["config"]["model"])


async def test_a_sandbox_that_goes_is_a_sandbox_error(mini: PoolHarness, stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    stub.script = {"k": [bash("sleep 60")]}
    box = await boxes()
    running = asyncio.create_task(asyncio.to_thread(mini.run, spec_for(box, stub, "k", tmp_path, command_seconds=50)))
    while not stub.seen["k"]:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)
    await box.stop()
    with pytest.raises(SandboxError):
        await running


async def test_run_needs_load_and_a_sandbox(mini: PoolHarness, stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    spec = spec_for(await boxes(), stub, "k", tmp_path)
    with pytest.raises(HarnessError, match="not loaded"):
        MiniSweAgent().run(spec)
    with pytest.raises(HarnessError, match="no sandbox"):
        mini.run(msgspec.structs.replace(spec, sandbox=None))
