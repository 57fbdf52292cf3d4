from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sandbox_suite import Make, config_of, spec_of

from whippletree import sandboxes


@pytest.fixture
def sandbox_root() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="wt-test-"))
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
async def make(sandbox_root: Path) -> AsyncIterator[Make]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(kind: str, *, gateway: tuple[str, int] = ("127.0.0.1", 9), **fields: Any) -> sandboxes.Box:
            config = config_of(kind, sandbox_root)
            box = sandboxes.create(config, spec_of(**fields), gateway=gateway)
            stack.push_async_callback(box.stop)
            await box.start()
            return box

        yield start
