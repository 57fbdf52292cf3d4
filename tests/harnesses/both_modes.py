"""What tests share that run a harness in a pool and as a process, against a scripted model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from model_stub import ModelStub, bash, raw

from whippletree import sandboxes
from whippletree.protocols import AttemptSpec, Harness, HarnessResult, PoolHarness

DONE = "printf '%s\\n' \"${DONE_MESSAGE:-submitted}\"; echo 42"
SECRET = "wt-secret-key"
TROUBLES = [
    bash("echo code is 42 > note; cat note"),
    bash("kill -9 $$"),
    raw('{"command": "ls'),
    raw('{"command": "ls"}', name="python"),
    bash("printf 'a\\r\\nb\\377'; exit 3", 'env | grep -c "KEY=."'),
    bash("echo slow; sleep 30"),
]
"""Turns of a model after which a harness with a bash tool goes on."""


def spec_for(box: sandboxes.Box, stub: ModelStub, key: str, output: Path, inside: bool = False, **settings: Any) -> AttemptSpec:
    assert box.handle is not None
    host, port = box.gateway if inside else ("127.0.0.1", stub.port)
    return AttemptSpec(
        rollout_id=key,
        attempt=1,
        instruction="Find the code.",
        base_url=f"http://{host}:{port}/v1",
        api_key=key,
        model="policy",
        workdir=box.handle.workdir,
        output_dir=str(output),
        timeout=60.0,
        settings=settings,
        sandbox=box.handle,
    )


async def in_pool(harness: PoolHarness, spec: AttemptSpec) -> tuple[HarnessResult, dict[str, Any]]:
    """How it ended, and its trajectory."""
    result = await asyncio.to_thread(harness.run, spec)
    return result, json.loads((Path(spec.output_dir) / "trajectory.json").read_text())


async def as_process(
    harness: Harness, box: sandboxes.Box, spec: AttemptSpec, tmp_path: Path
) -> tuple[HarnessResult, bytes | None]:
    """How it ended, and its trajectory as it was read."""
    plan = harness.plan(spec)
    for number, (path, content) in enumerate(plan.files):
        (tmp_path / f"{spec.api_key}-{number}").write_text(content)
        await box.put(tmp_path / f"{spec.api_key}-{number}", path)
    done = await box.exec(plan.argv, timeout=120, environment=plan.environment, cwd=spec.workdir)
    trajectory = await box.read(plan.trajectory) if plan.trajectory else None
    return harness.result(done.exit_code, done.output, trajectory), trajectory
