"""The harness that docs/harnesses.md shows how to write is launched, asks, acts and ends as the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from control_world import World, write_task

from whippletree.errors import ConfigurationError
from whippletree.harnesses import load_harness

PAGE = Path(__file__).parents[2] / "docs" / "harnesses.md"
BLOCK = re.compile(r"<!-- file: my_agent/(\w+\.py) -->\n```python\n(.*?)```", re.DOTALL)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the page, in a folder that can be imported from."""
    folder = tmp_path / "my_agent"
    folder.mkdir()
    found = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert [name for name, _ in found] == ["my_agent.py", "my_harness.py"]
    for name, text in found:
        (folder / name).write_text(text)
    assert len((folder / "my_harness.py").read_text().splitlines()) <= 30
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "my_harness", raising=False)
    return folder


async def test_it_runs_from_a_task_to_a_reward(written: Path, tmp_path: Path) -> None:
    world = World(tmp_path / "run", kind="auto")
    world.say = lambda prompt: "done" if "made it" in prompt else "touch done && echo made it"  # type: ignore[method-assign]
    try:
        async with world.serving():
            names = world.add(1, write_task(tmp_path / "task"), harness="my-agent", max_attempts=1)
            settings = {"system": "Be quick."}
            spec = world.spec(adapter="my_harness:MyHarness", harness="my-agent", launch="process", settings=settings)
            async with world.controlling(spec):
                (rollout,) = await world.finished(names)
            calls = world.store.calls(names[0], 1)
            (attempt,) = world.store.attempts(names[0])
    finally:
        world.close()
    if attempt.sandbox.startswith("process:"):
        pytest.skip("no sandbox here shows folders at other paths")
    assert (rollout.state, rollout.reward) == ("succeeded", 1.0), rollout.cause
    assert len(calls) == 2 and calls[1].parent_call_id == calls[0].call_id and all(call.delivered for call in calls)
    (log,) = (tmp_path / "run" / "attempts").rglob("agent.log")
    assert log.read_text() == "ended\n"


def test_a_wrong_setting_is_named(written: Path) -> None:
    harness = load_harness("my_harness:MyHarness")
    assert harness.settings is not None and harness.settings.__struct_fields__ == ("system",)
    assert harness.result(1, "no route", None).crashed
    with pytest.raises(ConfigurationError, match="is not known"):
        load_harness("my-agent")
