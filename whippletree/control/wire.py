"""What a pool and its hosts say to each other: one JSON object a line, over a socket of their own.

Standard output and error of a host belong to the harness and go to a log file; they cannot disturb this channel.

Invariants (tests/control/test_pool.py): messages round-trip; a harness that prints does not disturb them.
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import msgspec

from whippletree.errors import HarnessError
from whippletree.protocols import AttemptSpec, HarnessResult
from whippletree.types import Cause, Struct

T = TypeVar("T")


class Run(Struct, tag="run", tag_field="type"):
    """Pool → host: start this attempt as tenant `tenant`.

    Example: Run(tenant=7, spec=AttemptSpec(rollout_id="s0", attempt=1, ...))
    """

    tenant: int
    spec: AttemptSpec


class Done(Struct, tag="done", tag_field="type"):
    """Host → pool: the tenant ended. A tenant's exception is a result with crashed=True, not an error of the host. `cause` is
    set when the fault was not the harness's: its sandbox failed, or its settings are wrong.

    Example: Done(tenant=7, result=HarnessResult(exit_status="Submitted", steps=3))
    """

    tenant: int
    result: HarnessResult
    cause: Cause | None = None


class Ready(Struct, tag="ready", tag_field="type"):
    """Host → pool: the harness is imported. `seconds` of wall time and `cpu_seconds` it took, `rss_mb` resident memory.

    Example: Ready(pid=4711, seconds=9.1, cpu_seconds=7.9, rss_mb=210.0)
    """

    pid: int
    seconds: float
    cpu_seconds: float
    rss_mb: float


class Failed(Struct, tag="failed", tag_field="type"):
    """Host → pool: the harness cannot be loaded; the host exits. `message` is the end of the traceback.

    Example: Failed(message="ModuleNotFoundError: No module named 'minisweagent'")
    """

    message: str


Report: TypeAlias = Ready | Failed | Done  # host → pool

_ORDERS: msgspec.json.Decoder[Run] = msgspec.json.Decoder(Run)
_REPORTS: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode(message: Run | Report) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def decode_order(line: bytes) -> Run:
    """What the pool says. Raises HarnessError when it is not such a message."""
    return _decode(line, _ORDERS)


def decode_report(line: bytes) -> Report:
    """What a host says. Raises HarnessError when it is not such a message."""
    return _decode(line, _REPORTS)


def _decode(line: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        shown = line[:200].decode(errors="replace")
        raise HarnessError(
            f"not a message between pool and host: {error}: {shown}", "use one version of whippletree"
        ) from error
