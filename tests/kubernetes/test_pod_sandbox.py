"""Pods as sandboxes, on a real API server: the suite of all backends, and what is a pod's own."""

from __future__ import annotations

import pytest
from sandbox_suite import Make, Suite, sh
from sandbox_suite_out import OutSuite

pytestmark = pytest.mark.kube


class TestPod(Suite, OutSuite):
    kind = "kubernetes"
