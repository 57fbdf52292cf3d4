"""The podman backend: the suites, and what it isolates."""

from __future__ import annotations

import pytest
from sandbox_suite import Suite
from sandbox_suite_left import LeftSuite
from sandbox_suite_network import NetworkSuite, index, outside
from sandbox_suite_out import OutSuite, UserSuite

from whippletree import sandboxes

SUPPORT = sandboxes.probe()
pytestmark = pytest.mark.skipif(bool(SUPPORT.podman), reason=f"podman does not work here: {SUPPORT.podman}")
__all__ = ["index", "outside"]  # fixtures of the network's suite


class TestPodman(Suite, OutSuite, LeftSuite, NetworkSuite, UserSuite):
    kind = "podman"
