"""A process of a run ends by itself once the run's summary is written."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

PROGRAM = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from whippletree.cli.ending import end_with_run
    from whippletree.gateway.server import stop_on_signals

    async def main():
        stop = stop_on_signals()
        end_with_run(Path(sys.argv[1]), "gateway", look=0.05, spare=0.1)
        print("ready", flush=True)
        await stop.wait()

    asyncio.run(main())
    """
)


def start(summary: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(summary)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_a_summary_that_is_written_ends_it_and_one_that_was_there_does_not(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    summary.write_text("{}")  # of an earlier learner
    with start(summary) as process:
        time.sleep(0.5)
        assert process.poll() is None
        draft = tmp_path / "draft"
        draft.write_text("{}")
        draft.replace(summary)
        said, _ = process.communicate(timeout=30)
        assert process.returncode == 0
    assert said == f"gateway: the run has ended ({summary} is written), nobody asks for anything more: stopping\n"


def test_without_a_summary_it_waits(tmp_path: Path) -> None:
    with start(tmp_path / "summary.json") as process:
        time.sleep(0.5)
        assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 0
