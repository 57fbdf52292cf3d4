"""What the control routes answer. Every struct crosses a process boundary: gateway → controller, learner, operator."""

from __future__ import annotations

from whippletree.gateway.replicas import ReplicaHealth
from whippletree.types import Struct


class HoldReport(Struct):
    """Answer to hold and release: calls that are being sampled, and calls that wait.

    `in_flight` 0 after a hold means that the engines have nothing of ours to do until the release.
    Example: HoldReport(held=True, in_flight=0, waiting=12)
    """

    held: bool
    in_flight: int
    waiting: int


class SealReport(Struct):
    """Answer to seal: the attempt's recorded calls, and how many of them the harness has in full.

    `sealed` is false when the attempt is not its rollout's current one (it can report nothing anyway).
    Example: SealReport(sealed=True, calls=5, delivered=5)
    """

    sealed: bool
    calls: int
    delivered: int


class GatewayStatus(Struct):
    """What the gateway is doing. Counts are since its process started.

    `prefix_breaks` counts calls by cause; "" are those that went on from recorded ids.
    Example: GatewayStatus(held=False, in_flight=3, waiting=0, sessions=2, calls=40, delivered=37, aborted=0, replayed=0,
                           resumed=0, prefix_breaks={"first": 8, "": 32}, engines=(ReplicaHealth(...),))
    """

    held: bool
    in_flight: int
    waiting: int
    sessions: int
    calls: int
    delivered: int
    aborted: int
    replayed: int
    resumed: int
    prefix_breaks: dict[str, int] = {}
    engines: tuple[ReplicaHealth, ...] = ()


class Health(Struct, omit_defaults=False):
    """Answer to /healthz. Example: Health(status="ok")"""

    status: str = "ok"


class ReadyFile(Struct):
    """Written to the ready file once the gateway listens. Example: ReadyFile(port=43211, pid=17)"""

    port: int
    pid: int
