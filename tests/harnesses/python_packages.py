"""What tests of harnesses that are Python packages share: a spec."""

from __future__ import annotations

from functools import partial

from adapter_parts import attempt

with_settings = partial(attempt, "Write the file.")
SPEC = with_settings()
