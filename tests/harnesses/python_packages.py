"""What tests of harnesses that are Python packages share: a spec."""

from __future__ import annotations

from typing import Any

import msgspec

from whippletree.protocols import AttemptSpec

SPEC = AttemptSpec(
    rollout_id="r0",
    attempt=1,
    instruction="Write the file.",
    base_url="http://127.0.0.1:8000/v1",
    api_key="wt-secret-key",
    model="policy",
    workdir="/app",
    output_dir="/host/run/r0",
)


def with_settings(**settings: Any) -> AttemptSpec:
    return msgspec.structs.replace(SPEC, settings=settings)
