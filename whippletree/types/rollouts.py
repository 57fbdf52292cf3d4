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
    """Whose fault a failure is. All of them leave the reward None; a wrong answer is not a failure. What follows from each
    is in one table (whippletree.control.policy)."""

    ENGINE = "engine"
    GATEWAY = "gateway"
    SANDBOX = "sandbox"
    IMAGE = "image"
    SETUP = "setup"
    HARNESS = "harness"
    AGENT_TIMEOUT = "agent_timeout"
    BUDGET = "budget"
    CAPTURE = "capture"
    HOST_LOST = "host_lost"
    NO_CALLS = "no_calls"
    TASK = "task"
    VERIFIER = "verifier"
    RUBRIC = "rubric"
    DEADLINE = "deadline"
    CONFIGURATION = "configuration"
    CANCELLED = "cancelled"


class Cause(Struct):
    """Why an attempt failed: class, the phase it was in, what happened, what to do. `step`: of a task with several, which.

    Example: Cause(cause=CauseClass.SANDBOX, phase="boot", message="bwrap exited 1: ...", next_step="run `whippletree check`")
    """

    cause: CauseClass
    phase: str
    message: str
    next_step: str = ""
    step: str = ""


class CallReward(Struct):
    """What one call of an attempt earned by itself, beside the rollout's reward. `of` says how `number` counts, from 0: "call"
    the attempt's calls as they are recorded, "turn" those of the main conversation whose reply the harness had.

    Example: CallReward(of="turn", number=2, reward=0.1)
    """

    of: Literal["call", "turn"]
    number: int
    reward: float


class StepResult(Struct):
    """How one step of a task with several was judged. `reward` None means that its verifier failed. `exit_status`: the
    harness's own word for its end in this step; `cause`: why the agent, or the verifier, did not come to its end.

    Example: StepResult(name="scaffold", reward=1.0, scores={"reward": 1.0}, exit_status="Submitted")
    """

    name: str
    reward: float | None
    scores: dict[str, float] = {}
    exit_status: str = ""
    cause: Cause | None = None


class RubricScore(Struct):
    """What a judge model said of one attempt by a rubric. `score` from 0 to 1, or None where it gave none (`problem` says why).
    `rubric`: digest of the rubric's text; `model`: the judge. `criteria`: the share of its points that each criterion got, and
    `votes` the score of each vote. `why`: the judge's own words. `requests`: keys of its replies in the run's rubrics.sqlite;
    `cached`: all of them were there already.

    Example: RubricScore(name="style", rubric="3f9a1c20be77", model="judge-1", score=0.75,
                         criteria={"clear": 1.0, "short": 0.5}, votes=(0.75,), requests=("9c1d...",))
    """

    name: str
    rubric: str = ""
    model: str = ""
    score: float | None = None
    criteria: dict[str, float] = {}
    votes: tuple[float, ...] = ()
    why: str = ""
    requests: tuple[str, ...] = ()
    cached: bool = False
    problem: str = ""


class VerifierResult(Struct):
    """What the verifier said. `reward` None means that the verifier itself failed (then `cause` says why, its phase where).
    `scores` are its named scores; they are combined only by an explicit rule: `expression` is the one of the configuration
    that gave the reward ("" for none: the score named "reward", or the only one). `tampering`: what the agent had left where
    only the tests write; it counted for nothing. `steps`: the results of a task's steps, as far as they were run.
    `call_rewards`: what single calls earned besides (batching.advantages.estimator = "per-call" uses them).
    `pending`: scores that judge models have yet to give; the reward, which `expression` says, waits for them. `rubrics`: what
    they gave.

    Example: VerifierResult(reward=0.9, scores={"correct": 1.0, "style": 0.5}, expression="0.8 * correct + 0.2 * style")
    """

    reward: float | None
    scores: dict[str, float] = {}
    exit_code: int | None = None
    output: str = ""
    cause: Cause | None = None
    tampering: tuple[str, ...] = ()
    expression: str = ""
    steps: tuple[StepResult, ...] = ()
    call_rewards: tuple[CallReward, ...] = ()
    pending: tuple[str, ...] = ()
    rubrics: tuple[RubricScore, ...] = ()


class RolloutSpec(Struct):
    """The desired rollout: everything an attempt needs, written once when the rollout is created.

    `group_id` joins the rollouts of one task under one harness configuration. Without a `task_path` a rollout is external: no
    controller of ours claims it; whoever runs it is given `input` and reports through the rollout API. `variant`: which of the
    source's variations of the harness's settings it runs under ("": the settings as they are).

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
    input: Any = None
    variant: str = ""

    @property
    def external(self) -> bool:
        """True where somebody else runs it."""
        return not self.task_path


class Phase(Struct):
    """One timed phase of an attempt (boot, healthcheck, setup, agent, seal, snapshot, collect, verify, cleanup, rubric).
    `started` and `seconds`: when, and how long; `limit`: how long it might have taken.
    `step`: of a task with several steps, the one that it belongs to. `overran`: it was ended at its limit.

    Example: Phase(name="agent", started=10.0, seconds=1.5, limit=300.0, step="scaffold")
    """

    name: str
    started: float
    seconds: float
    limit: float = 0.0
    step: str = ""
    overran: bool = False


class KeptSnapshot(Struct):
    """The machine of an attempt as it was kept. `directory`: below that of the run. `holds`, and `reason` why not more: as in
    protocols.Snapshot, which the directory has in full. `after`: the phase at whose end it was taken. `bytes` on disk.

    Example: KeptSnapshot(directory="attempts/s0-1f/1/snapshot", holds="files", bytes=81920, after="seal",
                          reason="bubblewrap sandboxes cannot be checkpointed")
    """

    directory: str
    holds: Literal["processes+files", "files"]
    bytes: int
    after: str
    reason: str = ""


class Usage(Struct):
    """What a sandbox uses.

    `cpu_seconds`: user and system time of all that ran in it. `memory_peak_bytes`: the most that was held at once; None where
    there is no cgroup, which counts it. `processes`: those that run now. `disk_bytes`: what its private file systems hold now.

    Example: Usage(cpu_seconds=1.25, memory_peak_bytes=73400320, processes=3, disk_bytes=40960)
    """

    cpu_seconds: float
    memory_peak_bytes: int | None
    processes: int
    disk_bytes: int


class Attempt(Struct):
    """One try at a rollout. `attempt` counts from 1 and is the fencing token: reports of an older one change nothing.
    `cut_short`: why the agent was stopped before its own end, where the attempt was judged all the same (its time or its
    budget was over); `cause` is set instead where it was not judged. `usage`: what its sandbox had used when the agent's
    processes had been ended, before the tests; None where that could not be measured. `snapshot`: its machine, where it was
    kept. `lease_seconds`: after so much silence of whoever runs it the attempt is lost (store/leases.py); 0: it has no lease.

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
    cut_short: Cause | None = None
    usage: Usage | None = None
    snapshot: KeptSnapshot | None = None
    lease_seconds: float = 0.0

    def step_at(self, when: float) -> str:
        """The step whose agent was at work at `when` (seconds since the epoch): that of a call received then. "" for none."""
        for phase in self.phases:
            if phase.name == "agent" and phase.started <= when <= phase.started + phase.seconds:
                return phase.step
        return ""


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


class RolloutPage(Struct):
    """A page of rollouts. `next` goes on behind the last of them; `more` is true where others are there already.

    Example: RolloutPage(rollouts=(Rollout(...),), next="c12", more=False)
    """

    rollouts: tuple[Rollout, ...] = ()
    next: str = ""
    more: bool = False


class EventPage(Struct):
    """A page of a rollout's events, in the order in which they were written. `next`: see RolloutPage.

    Example: EventPage(events=(Event(...),), next=7)
    """

    events: tuple[Event, ...] = ()
    next: int = 0
    more: bool = False


class QueueCount(Struct):
    """How many rollouts of a source are in a state.

    Example: QueueCount(source="trail", state="queuing", count=48)
    """

    source: str
    state: RolloutState
    count: int


class QueueReport(Struct):
    """Every source's rollouts by state. While `paused` nothing is claimed; what runs goes on.

    Example: QueueReport(paused=False, counts=(QueueCount(source="trail", state="running", count=8),))
    """

    paused: bool
    counts: tuple[QueueCount, ...] = ()


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
