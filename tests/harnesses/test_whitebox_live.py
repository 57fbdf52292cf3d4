"""whitebox in both modes, in real sandboxes, against a scripted model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import both_modes
import msgspec
import pytest
from both_modes import DONE, SECRET, TROUBLES
from model_stub import ModelStub, bash, error, text

from whippletree import sandboxes
from whippletree.errors import HarnessError, SandboxError
from whippletree.harnesses.whitebox import Whitebox
from whippletree.protocols import AttemptSpec, HarnessResult


def spec_for(box: sandboxes.Box, stub: ModelStub, key: str, output: Path, inside: bool = False, **settings: Any) -> AttemptSpec:
    return both_modes.spec_for(box, stub, key, output, inside, **{"tool_name": "bash"} | settings)


async def pool(spec: AttemptSpec) -> tuple[HarnessResult, dict[str, Any]]:
    harness = Whitebox()
    harness.load()
    return await both_modes.in_pool(harness, spec)


async def process(box: sandboxes.Box, spec: AttemptSpec, tmp_path: Path) -> tuple[HarnessResult, dict[str, Any]]:
    result, trajectory = await both_modes.as_process(Whitebox(), box, spec, tmp_path)
    assert trajectory is not None, result
    return result, json.loads(trajectory)


SCRIPT = [*TROUBLES, bash("pwd; cat"), bash(DONE)]


@pytest.mark.parametrize("settings", [{}, {"compact_every": 2}], ids=["plain", "compacting"])
async def test_both_modes_send_the_same_requests(stub: ModelStub, boxes: Any, tmp_path: Path, settings: dict[str, Any]) -> None:
    stub.script = {"pooled": SCRIPT, SECRET: SCRIPT}
    settings = {"command_seconds": 5} | settings
    pooled = await boxes("pooled", gateway_port=0)
    alone = await boxes("alone", read_only=Whitebox().read_only)
    (result, record), (lone, trajectory) = await asyncio.gather(
        pool(spec_for(pooled, stub, "pooled", tmp_path / "p", **settings)),
        process(alone, spec_for(alone, stub, SECRET, tmp_path, inside=True, **settings), tmp_path),
    )
    assert result == lone == HarnessResult(exit_status="Submitted", steps=8, message="42\n")
    assert SECRET not in json.dumps(trajectory) and "pooled" not in json.dumps(record)
    assert record == trajectory
    shown = [text for turn in record["turns"] for text in turn["results"]]
    assert any("exit code -9" in content for content in shown)
    assert any("exit code 3\na" in content for content in shown) and any("exit code 1\n0" in content for content in shown)
    assert any("exit code 124\nslow" in content for content in shown)
    assert stub.seen["pooled"] == stub.seen[SECRET]


async def test_a_server_that_refuses_is_a_crash_in_both_modes(stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    stub.script = {"one": [error(401, "sealed")], "two": [error(401, "sealed")]}
    pooled, alone = await boxes("isolated"), await boxes("open", kind="process")
    result, _ = await pool(spec_for(pooled, stub, "one", tmp_path / "p"))
    lone, _ = await process(alone, spec_for(alone, stub, "two", tmp_path, inside=True), tmp_path)
    assert result == lone and result.crashed and result.exit_status == "ModelError" and "sealed" in result.message


async def test_many_at_once_do_not_mix(stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    keys = [f"key-{number}" for number in range(16)]
    stub.script = {key: [bash(f"echo {key} > mine"), bash("cat mine"), bash(f"{DONE}; cat mine")] for key in keys}
    rooms = [await boxes(f"many-{number}", gateway_port=0) for number in range(2)]
    specs = []
    for index, key in enumerate(keys):  # two sandboxes are enough: each key has a directory of its own there
        room = rooms[index % 2]
        await room.exec(("mkdir", key), timeout=10)
        spec = spec_for(room, stub, key, tmp_path / key)
        specs.append(msgspec.structs.replace(spec, workdir=f"{spec.workdir}/{key}"))
    results = await asyncio.gather(*(pool(spec) for spec in specs))
    assert [result.message for result, _ in results] == [f"42\n{key}\n" for key in keys]


async def test_a_sandbox_that_goes_is_a_sandbox_error(stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    stub.script = {"k": [bash("sleep 60")]}
    box = await boxes()
    running = asyncio.create_task(pool(spec_for(box, stub, "k", tmp_path, command_seconds=50)))
    while not stub.seen["k"]:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)
    await box.stop()
    with pytest.raises(SandboxError):
        await running


async def test_pool_mode_needs_a_sandbox(stub: ModelStub, boxes: Any, tmp_path: Path) -> None:
    stub.script = {"k": [text("hi")]}
    spec = spec_for(await boxes(), stub, "k", tmp_path)
    with pytest.raises(HarnessError, match="no sandbox"):
        Whitebox().run(msgspec.structs.replace(spec, sandbox=None))
