"""SandboxEnvironment gives mini what its own LocalEnvironment gives."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from whippletree.harnesses.mini_swe_agent import DONE_MESSAGE
from whippletree.protocols import PoolHarness
from whippletree.sandboxes import client

pytestmark = pytest.mark.live

COMMANDS: list[Any] = [
    "echo hi; echo err >&2",
    "exit 7",
    "kill -9 $$",
    "printf 'a\\r\\nb\\rc'",
    "printf '\\377\\376'",
    "no-such-command",
    "echo $VAR $0",
    "cd /tmp; pwd",
    "cat",
    "echo a; (sleep 0.2; echo late) &",
    "echo early; sleep 20",
    "if then",
    "",
    7,
    None,
    {"a": 1},
    ["echo one", "two"],
    "echo \0",
    "echo \ud800",
    "echo \udc80",
    f"echo {DONE_MESSAGE}; exit 1",
    f"echo not first; echo {DONE_MESSAGE}",
]


async def test_results_equal_those_of_the_local_environment(
    mini: PoolHarness, boxes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "QUIET_SECONDS", 10.0)  # theirs waits for what is left, if that ends before the time limit
    monkeypatch.setattr(client, "LEFT_SECONDS", 10.0)
    from minisweagent.environments.local import LocalEnvironment

    from whippletree.harnesses.mini_environment import SandboxEnvironment

    box = await boxes(gateway_port=0)
    ours = SandboxEnvironment(sandbox=box.handle, cwd="/app", env={"VAR": "v"}, timeout=5)
    theirs = LocalEnvironment(cwd="/tmp", env={"VAR": "v"}, timeout=5)

    def run(environment: Any) -> list[Any]:
        return [environment.execute({"command": command}) for command in COMMANDS]

    got, expected = await asyncio.gather(asyncio.to_thread(run, ours), asyncio.to_thread(run, theirs))
    for command, one, other in zip(COMMANDS, got, expected, strict=True):
        assert one == other, command


async def test_a_process_left_in_the_background_keeps_no_result(mini: PoolHarness, boxes: Any) -> None:
    """mini's own environment waits for it until the time limit, and then loses the command's result."""
    from whippletree.harnesses.mini_environment import SandboxEnvironment

    box = await boxes(gateway_port=0)
    environment = SandboxEnvironment(sandbox=box.handle, cwd="/app", env={}, timeout=300)
    got = await asyncio.to_thread(environment.execute, {"command": "sleep 600 & echo parent is gone"})
    assert got == {"output": "parent is gone\n", "returncode": 0, "exception_info": ""}
    running = await asyncio.to_thread(environment.execute, {"command": "pgrep -x sleep | wc -l"})
    assert running["output"].strip() == "1"


async def test_a_submission_ends_the_attempt(mini: PoolHarness, boxes: Any) -> None:
    from minisweagent.exceptions import Submitted

    from whippletree.harnesses.mini_environment import SandboxEnvironment

    box = await boxes(gateway_port=0)
    environment = SandboxEnvironment(sandbox=box.handle, cwd="/app", env={"DONE_MESSAGE": DONE_MESSAGE}, timeout=5)
    with pytest.raises(Submitted) as caught:
        await asyncio.to_thread(environment.execute, {"command": 'echo "$DONE_MESSAGE"; echo 42'})
    assert caught.value.messages[0]["extra"] == {"exit_status": "Submitted", "submission": "42\n"}


async def test_template_names_are_the_sandboxs_and_hold_nothing_of_the_host(
    mini: PoolHarness, boxes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whippletree.harnesses.mini_environment import SandboxEnvironment

    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    box = await boxes(gateway_port=0, environment={"OF_THE_TASK": "1"})
    names = SandboxEnvironment(sandbox=box.handle, cwd="/app", timeout=5).get_template_vars(extra="e")
    assert (names["cwd"], names["node"], names["OF_THE_TASK"], names["extra"]) == ("/app", "sandbox", "1", "e")
    assert names["system"] == "Linux" and "SECRET_OF_THE_HOST" not in names
