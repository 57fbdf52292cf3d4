"""What an attempt's sandbox used, for the record.

Invariants (tests/control/test_reaching_attempts.py): a sandbox that cannot be measured costs its attempt nothing but a moment.
"""

from __future__ import annotations

import asyncio
import logging

from whippletree.errors import SandboxError
from whippletree.protocols import Sandbox
from whippletree.types import Usage

log = logging.getLogger(__name__)

SECONDS = 2.0  # that the answer may take


async def measured(box: Sandbox) -> Usage | None:
    """Its usage; None where it does not run, or does not say in time."""
    if box.handle is None:
        return None
    try:
        async with asyncio.timeout(SECONDS):
            return await box.usage()
    except (SandboxError, TimeoutError) as error:
        log.warning("sandbox %s could not be measured: %s", box.handle.sandbox_id, error or f"no answer within {SECONDS:g} s")
        return None
