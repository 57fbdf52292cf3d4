"""A process of a run that nobody supervises ends when the run does.

    learner: last update, last evaluation ─► summary.json ─► ends
    gateway, engine, controller: see the new summary ─► say so ─► `SPARE_SECONDS` ─► SIGTERM to themselves: the orderly way out

Those that `whippletree train` supervises do not look: it stops them as soon as the learner has ended, and one that ended before
would be taken for dead and started again.
Invariants (tests/cli/test_ending.py):
- a summary that was there before (of a run that is resumed) ends nobody; one that is written later does, with status 0;
- a run that was interrupted has no summary: its processes wait for the resumed learner.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

LOOK_SECONDS = 2.0
SPARE_SECONDS = 10.0  # for the learner to let go


def end_with_run(summary: Path, name: str, *, look: float = LOOK_SECONDS, spare: float = SPARE_SECONDS) -> None:
    """Send this process SIGTERM once the run's summary is written. Returns at once; a thread looks."""
    before = _stamp(summary)

    def watch() -> None:
        pause = threading.Event()
        while _stamp(summary) == before:
            pause.wait(look)
        pause.wait(spare)
        print(f"{name}: the run has ended ({summary} is written), nobody asks for anything more: stopping", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="end-with-run", daemon=True).start()


def _stamp(path: Path) -> tuple[int, int]:
    """Changes when the file is written anew; it is always replaced as a whole."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return (found.st_ino, found.st_mtime_ns)
