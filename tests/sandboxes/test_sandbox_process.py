"""The process backend: the suite, and that it claims nothing that it does not do."""

from __future__ import annotations

import os
import pwd

import pytest
from sandbox_suite import Make, Suite, sh
from sandbox_suite_left import LeftSuite
from sandbox_suite_out import OutSuite

from whippletree.errors import SandboxError
from whippletree.protocols import NetworkPolicy


class TestProcess(Suite, OutSuite, LeftSuite):
    kind = "process"


async def test_it_has_one_user(make: Make) -> None:
    box = await make("process")
    own = pwd.getpwuid(os.geteuid()).pw_name
    assert (await sh(box, "id -un", user=own)).output == f"{own}\n"
    with pytest.raises(SandboxError, match="has one user"):
        await sh(box, "true", user="4321")


async def test_nothing_holds_its_network(make: Make) -> None:
    box = await make("process", proxy_port=8001, network=NetworkPolicy(allow=("pypi.org:443",)))
    assert box.proxy_environment == {} and len(box.refusals) == 0
    with pytest.raises(SandboxError, match="nothing holds it"):
        await box.set_network(NetworkPolicy())


async def test_it_says_that_it_isolates_nothing(make: Make) -> None:
    box = await make("process")
    assert "NO isolation" in box.isolation


async def test_the_gateway_is_where_it_is_on_the_host(make: Make) -> None:
    box = await make("process", gateway=("127.0.0.1", 4242))
    assert box.gateway == ("127.0.0.1", 4242)


async def test_arguments_that_name_something_in_the_folder_are_rewritten(make: Make) -> None:
    box = await make("process")
    await sh(box, "echo x > note")
    done = await box.exec(("cat", "/app/note"), timeout=10)
    assert done.output == "x\n"
    untouched = await box.exec(("echo", "/usr/bin", "/", "app", "/app/../x"), timeout=10)
    assert untouched.output == "/usr/bin / app /app/../x\n"


async def test_scripts_find_the_folder_in_the_environment(make: Make) -> None:
    box = await make("process")
    done = await sh(box, 'echo 1 > "$WHIPPLETREE_ROOT/logs/r"; pwd')
    assert done.exit_code == 0 and await box.read("/logs/r") == b"1\n"
