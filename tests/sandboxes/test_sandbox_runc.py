"""The runc backend: the suites, and what it isolates."""

from __future__ import annotations

import pytest
from sandbox_suite import Make, Suite, sees_only, sh
from sandbox_suite_isolation import IsolationSuite
from sandbox_suite_left import LeftSuite
from sandbox_suite_network import NetworkSuite, index, outside
from sandbox_suite_out import OutSuite, UserSuite

from whippletree import sandboxes

SUPPORT = sandboxes.probe()
pytestmark = pytest.mark.skipif(bool(SUPPORT.runc), reason=f"runc does not work here: {SUPPORT.runc}")
__all__ = ["index", "outside"]  # fixtures of the network's suite


class TestRunc(Suite, IsolationSuite, OutSuite, LeftSuite, NetworkSuite, UserSuite):
    kind = "runc"


async def test_the_host_is_not_visible(make: Make) -> None:
    box = await make("runc")
    await sees_only(box)
    assert (await sh(box, "ls -A /home /run /sys 2>/dev/null")).output == "/home:\nagent\n\n/run:\n"


async def test_inside_there_is_nothing_to_read_of_the_init(make: Make) -> None:
    assert (await sh(await make("runc"), "cat /.init/sh /proc/1/environ | wc -c")).output.endswith("0\n")
