"""The page of the rollout API lists every operation, and its example runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whippletree.gateway.keys import control_key
from whippletree.gateway.rollout_api.operations import OPERATIONS

PAGE = Path(__file__).parents[2] / "docs" / "rollout-api.md"


def test_the_page_lists_every_operation_with_its_query() -> None:
    rows = dict(re.findall(r"^\| (\w+ \| `[^`]+`) \| (.+) \|$", PAGE.read_text(), re.M))
    assert set(rows) == {f"{operation.method} | `{operation.path}`" for operation in OPERATIONS}
    for operation in OPERATIONS:
        for parameter in operation.query:
            assert f"`{parameter.name}`" in rows[f"{operation.method} | `{operation.path}`"], (operation.name, parameter.name)


async def test_the_example_runs(make_world: Callable[..., Any]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    names: dict[str, Any] = {}
    exec(compile(example, str(PAGE), "exec"), names)
    async with make_world() as world:
        assert await asyncio.to_thread(names["run_one"], world.url, control_key(bytes(range(32)))) == 1.0
