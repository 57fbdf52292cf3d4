"""What the rollout API is asked and answers. Every struct crosses a process boundary.

A request with an unknown field is refused, since a misspelt reward must not be lost. Answers have all their fields.

Invariant (tests/gateway/test_rollout_api_wire.py): each struct survives JSON, and each has a schema in the OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from whippletree.gateway.config import LONGEST_LEASE
from whippletree.types import Cause, CauseClass, Event, Purpose, QueueCount, Rollout, RolloutState, Sampling, Struct

Name = Annotated[str, msgspec.Meta(max_length=200)]
Words = Annotated[str, msgspec.Meta(max_length=4000)]
Attempts = Annotated[int, msgspec.Meta(ge=1, le=100)]
Number = Annotated[int, msgspec.Meta(ge=1, le=999_999_999)]
Step = Annotated[int, msgspec.Meta(ge=0, le=999_999_999)]
Batch = Annotated[list["RolloutDraft"], msgspec.Meta(max_length=10_000)]


class RolloutDraft(Struct, forbid_unknown_fields=True):
    """A rollout to be. Give it a `rollout_id`, so that creating it again makes no second one. With a `task_path` a controller
    of ours runs it; without one it waits for somebody else, who is told `input`.

    Example: RolloutDraft(rollout_id="s0-g1-m0", group_id="s0-g1", source="search", input={"question": "Who?"})
    """

    rollout_id: Name = ""
    group_id: Name = ""
    source: Name = "api"
    task_id: Name = ""
    task_path: Name = ""
    harness: Name = "external"
    purpose: Purpose = "train"
    step: Step = 0
    sampling: Sampling = Sampling()
    max_attempts: Attempts = 3
    labels: dict[str, str] = {}
    input: Any = None


class CreateRollouts(Struct, forbid_unknown_fields=True):
    """Rollouts to be created: all of them or none.

    Example: CreateRollouts(rollouts=[RolloutDraft(rollout_id="s0-g1-m0")])
    """

    rollouts: Batch


class RolloutInfo(Struct, omit_defaults=False):
    """A rollout as it stands. `attempt` is its last one, 0 before the first; `reward` is there once it succeeded.

    Example: RolloutInfo(rollout_id="s0-g1-m0", status="running", attempt=1, group_id="s0-g1", source="search", created=1.0,
                         updated=2.0)
    """

    rollout_id: str
    status: RolloutState
    attempt: int
    group_id: str
    source: str
    created: float
    updated: float
    reward: float | None = None
    cause: Cause | None = None
    task_id: str = ""
    task_path: str = ""
    harness: str = ""
    purpose: Purpose = "train"
    step: int = 0
    labels: dict[str, str] = {}
    input: Any = None


class RolloutList(Struct, omit_defaults=False):
    """A page of rollouts. `next` goes on behind them; `more`: there are others already.

    Example: RolloutList(rollouts=(RolloutInfo(...),), next="c12")
    """

    rollouts: tuple[RolloutInfo, ...] = ()
    next: str = ""
    more: bool = False


class RolloutUpdate(Struct, forbid_unknown_fields=True):
    """What became of a rollout. `attempt` is the one that says so: an older one changes nothing.

    `status` "running" begins the next attempt, for `worker` alone where one is named, under a lease of `lease_seconds` (null:
    the gateway's, 0: none); with the `attempt` that runs it is a sign of life. "succeeded" carries a reward, or counts the last
    reward event of the attempt; "failed" says whose fault it was, and "queuing" too, and asks for another attempt.

    Example: RolloutUpdate(status="succeeded", attempt=1, reward=1.0)
    """

    status: RolloutState
    attempt: Number | None = None
    worker: Name = ""
    lease_seconds: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_LEASE)] | None = None
    reward: float | None = None
    scores: dict[str, float] = {}
    cause: CauseClass = CauseClass.HARNESS
    message: Words = ""


class Lease(Struct, omit_defaults=False):
    """Answer to a heartbeat: the attempt's lease begins anew, for `lease_seconds` (0: it has none).

    Example: Lease(rollout_id="s0-g1-m0", attempt=1, lease_seconds=60.0)
    """

    rollout_id: str
    attempt: int
    lease_seconds: float


class EventDraft(Struct, forbid_unknown_fields=True):
    """Something that happened. `event_id` is the sender's: the same again is not written twice. `kind` "reward" carries
    {"reward": number}, "call_reward" what CallRewardData has.

    Example: EventDraft(event_id="reward", kind="reward", data={"reward": 1.0})
    """

    kind: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    event_id: Name = ""
    time: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    data: dict[str, Any] = {}


class CallRewardData(Struct, forbid_unknown_fields=True):
    """What an event of kind "call_reward" carries: what one call of the attempt earned by itself. `call` is its number among
    all calls of the attempt, `turn` that among those of the main conversation whose reply was had, from 0. One is given.

    Example: CallRewardData(call=3, reward=0.1)
    """

    reward: float
    call: Annotated[int, msgspec.Meta(ge=0, le=999_999)] | None = None
    turn: Annotated[int, msgspec.Meta(ge=0, le=999_999)] | None = None


class EventReceipt(Struct, omit_defaults=False):
    """The event as it is stored, under an id that is the rollout's own.

    Example: EventReceipt(event_id="s0-g1-m0/1/reward")
    """

    event_id: str


class EventList(Struct, omit_defaults=False):
    """A page of events. `next` goes on behind them.

    Example: EventList(events=(Event(...),), next=7)
    """

    events: tuple[Event, ...] = ()
    next: int = 0
    more: bool = False


class CancelRollouts(Struct, forbid_unknown_fields=True):
    """Rollouts to call off: those that are named, and those of the group.

    Example: CancelRollouts(group_id="s0-g1", reason="too old")
    """

    rollout_ids: Annotated[list[Name], msgspec.Meta(max_length=10_000)] = []
    group_id: Name = ""
    reason: Words = "called off"


class QueueState(Struct, omit_defaults=False):
    """Every source's rollouts by state. While `paused` nothing new begins.

    Example: QueueState(paused=False, counts=(QueueCount(source="search", state="queuing", count=12),))
    """

    paused: bool
    counts: tuple[QueueCount, ...] = ()


class ModelEndpoint(Struct, omit_defaults=False, forbid_unknown_fields=True):
    """An inference server. `kind` says what it speaks, `model` under which name it serves the policy ("" for the gateway's).

    Example: ModelEndpoint(name="vllm-0", url="http://10.0.0.5:8000", kind="vllm")
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    kind: Literal["vllm", "sglang", "embedded", "completions"] = "vllm"
    model: Name = ""


class ModelEndpoints(Struct, omit_defaults=False, forbid_unknown_fields=True):
    """Inference servers that calls may go to, beside those of the configuration.

    Example: ModelEndpoints(models=[ModelEndpoint(name="vllm-0", url="http://10.0.0.5:8000")])
    """

    models: Annotated[list[ModelEndpoint], msgspec.Meta(max_length=1000)] = []


class Problem(Struct):
    """Why a request was refused: what to read, and a word for programs.

    Example: Problem(message="no rollout 'x'; create it first", type="invalid_request_error", code="not_found")
    """

    message: str
    type: str = ""
    code: str | None = None
    param: str | None = None


class ProblemBody(Struct):
    """The body of every refusal.

    Example: ProblemBody(error=Problem(message="no rollout 'x'"))
    """

    error: Problem


def info(rollout: Rollout) -> RolloutInfo:
    """A rollout for those outside."""
    spec = rollout.spec
    return RolloutInfo(
        rollout_id=spec.rollout_id,
        status=rollout.state,
        attempt=rollout.attempt,
        group_id=spec.group_id,
        source=spec.source,
        created=rollout.created,
        updated=rollout.updated,
        reward=rollout.reward,
        cause=rollout.cause,
        task_id=spec.task_id,
        task_path=spec.task_path,
        harness=spec.harness,
        purpose=spec.purpose,
        step=spec.step,
        labels=spec.labels,
        input=spec.input,
    )
