"""Where the files of an attempt are.

Invariant (tests/control/test_attempt.py): names are readable and safe, and different for different ids.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path


def slug(rollout_id: str) -> str:
    """A name for paths and processes: readable, safe, and different for different ids."""
    safe = re.sub(r"[^A-Za-z0-9_-]+", "-", rollout_id)[:24]
    return f"{safe}-{hashlib.sha256(rollout_id.encode()).hexdigest()[:8]}"


def attempt_directory(run: Path, rollout_id: str, attempt: int) -> Path:
    """The directory of an attempt's files, below that of its run."""
    return run / "attempts" / slug(rollout_id) / str(attempt)
