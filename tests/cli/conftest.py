"""The recorded run of the UI's tests, and a run file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ui"))  # recorded_run

from recorded_run import record

from whippletree.loop.layout import Layout

RUN_FILE = """
[[sources]]
name = "trail"
tasks = {kind = "trail"}

[sources.harness]
settings = {mode = "text", step_limit = 4}

[loop]
steps = 3
"""


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A complete run of two updates; read it, do not change it."""
    return record(tmp_path_factory.mktemp("runs") / "demo", steps=2, tasks=3)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN_FILE, encoding="utf-8")
    return path
