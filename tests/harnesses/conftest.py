from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from model_stub import ModelStub

from whippletree import sandboxes
from whippletree.harnesses import load_harness
from whippletree.protocols import Limits, PoolHarness, SandboxSpec


@pytest.fixture
async def stub() -> AsyncIterator[ModelStub]:
    model = ModelStub()
    await model.start()
    yield model
    await model.stop()


@pytest.fixture(scope="session")
def mini() -> PoolHarness:
    harness = load_harness("mini-swe-agent")
    assert isinstance(harness, PoolHarness)
    harness.load()
    return harness


@pytest.fixture
async def boxes(stub: ModelStub) -> AsyncIterator[Any]:
    root = tempfile.mkdtemp(prefix="wt-harness-")
    async with contextlib.AsyncExitStack() as stack:

        async def start(name: str = "h", kind: Any = "auto", **fields: Any) -> sandboxes.Box:
            spec = SandboxSpec(sandbox_id=name, limits=Limits(memory_mb=1024), **fields)
            config = sandboxes.SandboxConfig(root=root, kind=kind)
            box = sandboxes.create(config, spec, gateway=("127.0.0.1", stub.port))
            stack.push_async_callback(box.stop)
            await box.start()
            return box

        yield start
    shutil.rmtree(root, ignore_errors=True)
