"""Rollouts, their attempts, what happened to them, and the updates that they went into."""

from __future__ import annotations

import enum
from typing import Any, Literal

import msgspec

from whippletree.types.base import Struct
from whippletree.types.engines import Sampling

RolloutState = Literal["queuing", "running", "succeeded", "failed"]
Purpose = Literal["train", "eval"]
Launch = Literal["process", "pool", "kubernetes"]


class CauseClass(enum.StrEnum):
    """Whose fault a failure is. All of them leave the reward None; a wrong answer is not a failure."""

    ENGINE = "engine"
    GATEWAY = "gateway"
    SANDBOX = "sandbox"
    HARNESS = "harness"
    HOST_LOST = "host_lost"
    NO_CALLS = "no_calls"
    TASK = "task"
    VERIFIER = "verifier"
    DEADLINE = "deadline"
    CONFIGURATION = "configuration"
    CANCELLED = "cancelled"


class Cause(Struct):
    """Why an attempt failed: class, the phase it was in, what happened, what to do.

    Example: Cause(cause=CauseClass.SANDBOX, phase="boot", message="bwrap exited 1: ...", next_step="run `whippletree check`")
    """

    cause: CauseClass
    phase: str
    message: str
    next_step: str = ""


class VerifierResult(Struct):
    """What the verifier said. `reward` None means that the verifier itself failed (then `cause` says why).
    `scores` are its named scores; they are combined only by an explicit rule. `tampering`: what the agent had left where only
    the tests write; it counted for nothing.

    Example: VerifierResult(reward=1.0, scores={"reward": 1.0}, exit_code=0)
    """

    reward: float | None
    scores: dict[str, float] = {}
    exit_code: int | None = None
    output: str = ""
    cause: Cause | None = None
    tampering: tuple[str, ...] = ()


class RolloutSpec(Struct):
    """The desired rollout: everything an attempt needs, written once when the rollout is created.

    `group_id` joins the rollouts of one task under one harness configuration. `key` makes creation idempotent.

    Example: RolloutSpec(rollout_id="s0003-g02-m5", group_id="s0003-g02", source="trail", task_id="trail-2-0-17",
                         task_path="/tasks/trail-2-0-17", harness="mini-swe-agent", purpose="train", step=3)
    """

    rollout_id: str
    group_id: str
    source: str
    task_id: str
    task_path: str
    harness: str
    purpose: Purpose = "train"
    step: int = 0
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    max_attempts: int = 3
    labels: dict[str, str] = {}


class Phase(Struct):
    """One timed phase of an attempt (boot, setup, agent, verify, cleanup); seconds.

    Example: Phase(name="agent", started=10.0, seconds=1.5)
    """

    name: str
    started: float
    seconds: float


class Attempt(Struct):
    """One try at a rollout. `attempt` counts from 1 and is the fencing token: reports of an older one change nothing.

    Example: Attempt(rollout_id="s0003-g02-m5", attempt=1, started=10.0)
    """

    rollout_id: str
    attempt: int
    started: float
    worker: str = ""
    sealed: bool = False
    finished: float = 0.0
    phases: tuple[Phase, ...] = ()
    result: VerifierResult | None = None
    cause: Cause | None = None
    exit_status: str = ""
    sandbox: str = ""


class Rollout(Struct):
    """A rollout as it stands: its spec, its state and, once terminal, its result. `reward` is None unless it was verified.

    Example: Rollout(spec=..., state="succeeded", attempt=1, reward=1.0, created=1.0, updated=2.0)
    """

    spec: RolloutSpec
    state: RolloutState
    created: float
    updated: float
    attempt: int = 0
    reward: float | None = None
    cause: Cause | None = None

    @property
    def terminal(self) -> bool:
        """True once the state can no longer change."""
        return self.state in ("succeeded", "failed")


class Event(Struct):
    """Something that happened to a rollout, for people and for the record. `event_id` makes a repeat a no-op.

    Example: Event(event_id="s0-1-boot", rollout_id="s0", attempt=1, time=1.0, kind="phase", data={"name": "boot"})
    """

    event_id: str
    rollout_id: str
    attempt: int
    time: float
    kind: str
    data: dict[str, Any] = {}


class StepRecord(Struct):
    """One optimiser update, planned before it is computed and committed with its checkpoint. On resume, planned steps after
    the last checkpoint are replayed with the same rollouts: each rollout is trained exactly once in the weights' history.

    Example: StepRecord(step=3, policy_version=4, rollout_ids=("a", "b"), committed=True, checkpoint="checkpoints/step-0003")
    """

    step: int
    rollout_ids: tuple[str, ...]
    policy_version: int
    committed: bool = False
    checkpoint: str = ""
