"""A whole training run whose record lies in PostgreSQL, and kill -9 of that server in the middle of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import demo_parts as parts
import pytest
from postgres_cluster import Cluster

from whippletree.store.place import FILE

pytestmark = [pytest.mark.chaos, pytest.mark.live, pytest.mark.timeout(1200)]

STEPS = 5
SETTINGS = (f"loop.steps={STEPS}", *parts.SMALL)


def test_a_run_goes_on_when_its_database_was_killed(tmp_path: Path, cluster: Cluster) -> None:
    directory = tmp_path / "run"
    process = parts.start(directory, *SETTINGS, f"store.url={cluster.url}")
    try:
        for done in (1, 3):
            parts.wait_for(lambda done=done: parts.updates(directory) >= done, process, directory)
            cluster.kill()
            cluster.start()
        summary = parts.finish(process, directory)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGINT)
            process.wait(90)
    assert summary["complete"]
    assert summary["steps"] == STEPS
    assert [path.name for path in (directory / "store").iterdir() if path.is_file()] == [FILE]
    parts.assert_trained_once(directory, STEPS)
