"""A recorded run, made once per session; tests that change it make their own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # recorded_run

from recorded_run import record

from whippletree.loop.layout import Layout


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A complete run of four updates; read it, do not change it."""
    return record(tmp_path_factory.mktemp("runs") / "demo")
