"""What the control routes are asked and answer. Every struct crosses a process boundary: gateway ⇄ whoever controls it.

Invariant (tests/gateway/test_gateway_wire.py): each struct survives JSON and MessagePack.
"""

from __future__ import annotations

import msgspec

from whippletree.gateway.replicas import ReplicaHealth
from whippletree.traces import RolloutView
from whippletree.types import CauseClass, RolloutState, Sampling, Struct


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
    `refused_keys`: keys that opened nothing since the gateway started; a harness that replaced its key shows there.
    `unanswered`: why the attempt's last call got no answer from any engine; "" where it got one.

    Example: SealReport(sealed=True, calls=5, delivered=5)
    """

    sealed: bool
    calls: int
    delivered: int
    refused_keys: int = 0
    unanswered: str = ""


class GatewayStatus(Struct):
    """What the gateway is doing. Counts are since its process started.

    `prefix_breaks` counts calls by cause; "" are those that went on from recorded ids. `refused_keys` counts requests whose key
    opened nothing here: a harness that was not given its key, or that replaced it. `loop_lag`: by how many seconds the event
    loop was late at most in the last minute, `loop_lag_worst` ever; `loop_stalls`: how often it stood still for
    `gateway.stall_seconds`. Of several workers the lags are the largest, all other counts are sums.

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
    refused_keys: int = 0
    loop_lag: float = 0.0
    loop_lag_worst: float = 0.0
    loop_stalls: int = 0


class Health(Struct, omit_defaults=False):
    """Answer to /healthz. Example: Health(status="ok")"""

    status: str = "ok"


class ReadyFile(Struct):
    """Written to the ready file once the gateway listens. `workers`: the workers' own ports, where there are several.

    Example: ReadyFile(port=43211, pid=17)
    """

    port: int
    pid: int
    workers: tuple[int, ...] = ()


# --- sessions: programs that are captured from outside -----------------------------------------------------------------


class SessionRequest(Struct):
    """What a new session is opened with; everything may be left out.

    `session_id` makes a repeated request the same session ("" has one made). `group_id` joins sessions of one task for training
    ("" leaves each alone). Without `sampling` the defaults of types.Sampling are fixed.

    Example: SessionRequest(task_id="fix-the-parser", harness="my-agent", labels={"seed": "3"})
    """

    session_id: str = ""
    task_id: str = ""
    group_id: str = ""
    source: str = "capture"
    harness: str = "capture"
    labels: dict[str, str] = {}
    sampling: Sampling = msgspec.field(default_factory=Sampling)


class SessionOpened(Struct):
    """A session, and how a program is pointed at it: a base URL of its dialect and the key, or an address that holds the key.

    Example: SessionOpened(session_id="capture-5d1f", attempt=1, api_key="wt-...", base_url="http://127.0.0.1:8000/v1",
                           anthropic_base_url="http://127.0.0.1:8000", gemini_base_url="http://127.0.0.1:8000",
                           path_base_url="http://127.0.0.1:8000/r/wt-.../v1")
    """

    session_id: str
    attempt: int
    api_key: str
    base_url: str
    anthropic_base_url: str
    gemini_base_url: str
    path_base_url: str


class SessionEnd(Struct):
    """How a session ended: exactly one of `reward`, and `error` with whose fault it was.

    Example: SessionEnd(reward=1.0)
    """

    reward: float | None = None
    scores: dict[str, float] = {}
    error: str = ""
    cause: CauseClass = CauseClass.HARNESS


class SessionState(Struct):
    """Answer to finish and delete: the session as it is now, and its recorded calls.

    Example: SessionState(session_id="capture-5d1f", attempt=1, state="succeeded", reward=1.0, calls=5, delivered=5)
    """

    session_id: str
    attempt: int
    state: RolloutState
    reward: float | None = None
    calls: int = 0
    delivered: int = 0


class RolloutReport(Struct):
    """A rollout's last attempt. `settled`: no call was under way, no delivery was being written, and the record stood still.

    `sealed`: nothing can be added any more. `problem` says why the calls' tokens cannot be read: then there is neither tree nor
    sample. The view's `samples` are left out unless they were asked for.

    Example: RolloutReport(attempt=1, settled=True, sealed=False, view=RolloutView(rollout=Rollout(...), calls=(...)))
    """

    attempt: int
    settled: bool
    sealed: bool
    view: RolloutView
    problem: str = ""
