"""One attempt's defence, on a real store and real sandboxes; the tricks themselves are in tests/hostile."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from whippletree import sandboxes
from whippletree.control.config import DefenceConfig
from whippletree.control.defending import SKIPPED, SUSPECTED, Defence, commands_of
from whippletree.protocols import SandboxSpec
from whippletree.sandboxes import SandboxConfig
from whippletree.store import open_store
from whippletree.store.record import RecordStore
from whippletree.tasks import defence as surveying
from whippletree.types import Attempt, Event, ParsedMessage, RolloutSpec, ToolCall


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[sandboxes.Box]:
    with tempfile.TemporaryDirectory(prefix="wt-") as short:
        made = sandboxes.create(
            SandboxConfig(kind="process", root=short + "/b"), SandboxSpec(sandbox_id="d-1", gateway_port=0), gateway=("", 1)
        )
        await made.start()
        yield made
        await made.stop()


class Tried:
    """An attempt that runs, and its defence."""

    def __init__(self, store: RecordStore, directory: Path) -> None:
        spec = RolloutSpec(rollout_id="r", group_id="g", source="s", task_id="t", task_path="/t", harness="h")
        store.create_rollouts([spec]).result()
        (attempt,) = store.claim("w", 1).result()
        self.store = store
        self.attempt: Attempt = attempt
        self.defence = Defence(DefenceConfig(), store, attempt, directory / "hidden")

    def events(self, kind: str) -> list[Event]:
        self.store.set_meta("flush", "").result()  # behind every write that was made before
        return [event for event in self.store.events("r") if event.kind == kind]


@pytest.fixture
def tried(tmp_path: Path):
    with open_store(tmp_path / "store") as store:
        yield Tried(store, tmp_path)


async def test_a_suspicion_is_written_once_however_often_it_shows(box: sandboxes.Box, tried: Tried) -> None:
    await tried.defence.before(box, "/app")
    await box.exec(["/bin/sh", "-c", "echo x > conftest.py"], timeout=5)
    for last in (False, True):
        await tried.defence.after(box, "/app", last=last)
        await box.exec(["/bin/sh", "-c", "echo x > conftest.py"], timeout=5)
    tried.defence.left(["/tests was there already"])
    tried.defence.left(["/tests was there already"])
    found = tried.events(SUSPECTED)
    assert [event.data["evidence"] for event in found] == ["/app/conftest.py", "/tests was there already"]
    assert len({event.event_id for event in found}) == 2


async def test_a_sandbox_that_cannot_be_surveyed_is_noted_and_goes_on(
    box: sandboxes.Box, tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveying, "_SURVEY", surveying._SURVEY.replace("find ", "no-such-find "))
    await tried.defence.before(box, "/app")
    await tried.defence.after(box, "/app", last=True)
    (event,) = tried.events(SKIPPED)
    assert "could not be surveyed" in event.data["reason"]
    assert tried.events(SUSPECTED) == []


def test_what_is_switched_off_does_nothing(tmp_path: Path, tried: Tried) -> None:
    off = DefenceConfig(hide_history=False, put_away=False, detect=False)
    spec = SandboxSpec(sandbox_id="d", files=((str(tmp_path), "/app"),))
    assert Defence(off, tried.store, tried.attempt, tmp_path / "hidden").conceal(spec) == spec
    assert not (tmp_path / "hidden").exists()


@pytest.mark.parametrize(
    ("arguments", "commands"),
    [
        ('{"command": "git log --all"}', ["git log --all"]),
        ('{"cmd": ["bash", "-lc", "git reflog"], "timeout": 5}', ["bash -lc git reflog"]),
        ('{"edits": [{"path": "a", "text": "x"}, {"path": "b"}]}', ["a", "x", "b"]),
        ("git log --all", ["git log --all"]),
        ("[1, 2]", []),
    ],
)
def test_commands_are_found_wherever_a_harness_puts_them(arguments: str, commands: list[str]) -> None:
    reply = ParsedMessage(
        content="", tool_calls=(ToolCall(id="1", name="bash", arguments=arguments),), finish_reason="tool_calls"
    )
    assert list(commands_of(reply)) == commands


def test_blocks_of_code_are_commands_and_prose_is_not() -> None:
    text = "I could use `git log --all`, but:\n```bash\nls -la\n```\nand\n```\npwd\n```"
    assert list(commands_of(ParsedMessage(content=text, finish_reason="stop"))) == ["ls -la\n", "pwd\n"]
    assert list(commands_of(None)) == []
