"""Settings of the control room.

Invariants (tests/control/test_control_config.py): every default is valid; a limit that is not positive is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from whippletree.configuration import Config, Count, Seconds
from whippletree.control.kubernetes.config import KubernetesConfig
from whippletree.control.policy import OnLimit, RestartPolicy
from whippletree.control.rubrics.config import RubricConfig, check_rubrics
from whippletree.errors import ConfigurationError, did_you_mean
from whippletree.sandboxes import egress_rules
from whippletree.tasks.reward import RewardExpression
from whippletree.types import CauseClass, Launch, RolloutSpec


def check_reward(text: str) -> None:
    """Raises ValueError where this is neither empty nor a reward expression."""
    try:
        reward_rule(text)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


def check_rubric_sources(config: ControlConfig, sources: Sequence[str]) -> None:
    """Raises ConfigurationError where a rubric names a source that is not there."""
    for rubric in config.rubrics:
        for name in rubric.sources:
            if name not in sources:
                step = did_you_mean(name, sources, f"the sources are: {', '.join(sources)}")
                raise ConfigurationError(f"rubric {rubric.name}: there is no source {name!r}", step)


def reward_rule(*texts: str) -> RewardExpression | None:
    """The first of these reward expressions that is not empty. Raises ConfigurationError."""
    found = next((text for text in texts if text), "")
    return RewardExpression(found) if found else None


class DeadlineConfig(Config):
    """Limit of each phase of an attempt, in seconds."""

    image: Seconds = 1800.0
    """Waiting for the images of the task, which this attempt or another one has made."""
    boot: Seconds = 60.0
    """Reading the task and starting the sandbox."""
    healthcheck: Seconds = 120.0
    """Waiting until the task's healthcheck succeeds."""
    setup: Seconds = 30.0
    """Putting the files of the harness, and of a task's step, into the sandbox, and running the step's script."""
    agent: Seconds = 300.0
    """The harness's work; a task may state a shorter limit of its own."""
    grace: Seconds = 10.0
    """After the agent's limit: how long a tenant of a pool host may take to notice before its host is replaced."""
    seal: Seconds = 30.0
    """Waiting for the gateway to record what is in flight and to close the attempt."""
    collect: Seconds = 120.0
    """The task's collect hooks and the copying of its artifacts, per step."""
    snapshot: Seconds = 60.0
    """Keeping the sandbox's files and processes, where `snapshots` asks for it; it takes nothing of the total."""
    verify: Seconds = 120.0
    """The verifier; a task may state a shorter limit of its own."""
    cleanup: Seconds = 20.0
    """Ending the sandbox."""
    total: Seconds = 86_400.0
    """The whole attempt, from its boot to its verdict; the phase that it ends is named."""


class PoolConfig(Config):
    """Long-lived processes that import a harness once and run many attempts each."""

    hosts: Count = 2
    """Host processes per harness."""
    tenants: Count = 16
    """Attempts that one host runs at the same time, each on a thread."""
    ready_seconds: Seconds = 120.0
    """Limit for a host to import its harness."""
    restart: RestartPolicy = RestartPolicy()
    """When a host that died is started again."""


class DefenceConfig(Config):
    """What is done against agents that cheat (docs/cheating.md)."""

    hide_history: bool = True
    """Take commits beyond HEAD out of a task's repositories while the agent works; the tests get them back."""
    put_away: bool = True
    """Before the tests, move aside new files that other programs read by themselves (conftest.py, sitecustomize.py, ...)."""
    detect: bool = True
    """Look through the agent's commands for tricks; what is found becomes events and changes no reward."""


class NetworkConfig(Config):
    """What attempts may reach besides the gateway. Entries are "host:port", a host (then port 443), "*.name:port" for all names
    below one, or "*:port" for every public address. An address that is not public must be listed itself."""

    tasks: Literal["closed", "allowlist", "open"] = "closed"
    """What tasks get of the networks that they ask for: nothing; the hosts of their allow-lists; or these, and where they ask
    for "public" every public address (ports 80 and 443)."""
    setup: tuple[str, ...] = ()
    """Besides, for every task, until its first agent starts: a mirror of packages, for example."""
    agent: tuple[str, ...] = ()
    """Besides, for every task, while its agent works."""
    verify: tuple[str, ...] = ()
    """Besides, for every task, while its tests run."""

    def __post_init__(self) -> None:
        """Raises ValueError for an entry that is no rule; `convert` adds the key."""
        for entry in (*self.setup, *self.agent, *self.verify):
            egress_rules.entry(entry)


class ControlConfig(Config):
    """How rollouts are run on this machine."""

    concurrency: Count = 16
    """Attempts under way at the same time."""
    launch: Launch = "pool"
    """"pool": inside long-lived host processes; "process": one harness process per attempt, inside its sandbox;
    "kubernetes": one Job per attempt, from a template. A source may say otherwise (`launch` of its harness)."""
    harness_directory: str = ""
    """Where `whippletree harness install` put harnesses; empty: whippletree/harnesses in the user's cache folder."""
    starts_at_once: Count = 8
    """Sandboxes being started at the same time; the others wait, outside their boot limit."""
    images: Literal["needed", "always"] = "needed"
    """Which tasks run on images, where the backend takes images: those that need one, or all (docs/tasks.md)."""
    images_at_once: Count = 4
    """Images being built or fetched at the same time, for attempts and, all but one, ahead of them."""
    idle_poll_seconds: Seconds = 0.05
    """Longest pause between two looks for queuing rollouts."""
    busy_poll_seconds: Seconds = 0.005
    """Shortest pause between two looks for queuing rollouts."""
    stop_seconds: Seconds = 30.0
    """After a request to stop: how long attempts may take to clean up and go back to the queue."""
    agent_timeout: OnLimit = "score"
    """An agent that was stopped at its time limit: "score" judges what it left, "mask" judges it and
    gives no reward, "retry" tries again."""
    out_of_budget: OnLimit = "score"
    """An agent that used up its steps, tokens or cost: as for `agent_timeout`."""
    reward: str = ""
    """The training reward from a verifier's named scores, for example "0.8 * correct + 0.2 * style" (docs/tasks.md); empty: the
    score named "reward", or the only one."""
    rubrics: tuple[RubricConfig, ...] = ()
    """Scores that judge models give once an attempt is over, by rubrics; reward expressions name them like the tests' scores
    (docs/rubrics.md). With launch = "kubernetes" they see no files."""
    variables: dict[str, str] = {}
    """Values of the ${NAME}s in tasks' variables. They are in the run's configuration file: no place for secrets."""
    snapshots: Literal["off", "failed", "all"] = "off"
    """Keep the sandbox as the agent left it, below the attempt's directory, to be opened by `whippletree rollouts shell`: of no
    attempt, of those that end with a cause, or of all but cancelled ones."""
    snapshots_gb: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """Size, in GiB, of all snapshots of a run; beyond it the oldest are removed."""
    deadlines: DeadlineConfig = DeadlineConfig()
    """Limits of an attempt's phases."""
    defence: DefenceConfig = DefenceConfig()
    """What is done against agents that cheat."""
    network: NetworkConfig = NetworkConfig()
    """What attempts may reach besides the gateway, by phase; not with launch = "kubernetes"."""
    pool: PoolConfig = PoolConfig()
    """Pool hosts; used with launch = "pool"."""
    kubernetes: KubernetesConfig = KubernetesConfig()
    """Jobs; used with launch = "kubernetes"."""

    def __post_init__(self) -> None:
        """Raises ValueError for a reward that is no expression, for rubrics of one name or of files in pods, and for snapshots
        of what no sandbox of ours runs; `convert` adds the key."""
        check_reward(self.reward)
        check_rubrics(self.rubrics)
        files = next((rubric.name for rubric in self.rubrics if rubric.files), "")
        if files and self.launch == "kubernetes":
            raise ValueError(f"rubric {files} wants files, and what a Job left is gone with its pod: leave its files out")
        if self.launch == "kubernetes" and self.network != NetworkConfig():
            raise ValueError("network is not for Jobs: pods reach what kubernetes.network says")
        if self.snapshots != "off" and self.launch == "kubernetes":
            raise ValueError('snapshots are of sandboxes on this machine: with launch = "kubernetes" leave them "off"')

    def rubrics_of(self, source: str) -> tuple[str, ...]:
        """The rubrics that score the rollouts of a source."""
        return tuple(rubric.name for rubric in self.rubrics if not rubric.sources or source in rubric.sources)

    def on_limit(self, cause: CauseClass) -> OnLimit:
        """What the setting of a cause says that has one (policy.LIMITS)."""
        return self.out_of_budget if cause is CauseClass.BUDGET else self.agent_timeout


class HarnessBinding(Config):
    """Which adapter runs the rollouts that name a harness, with which settings.

    Example: HarnessBinding(harness="mini-swe-agent", source="trail", settings={"step_limit": 5})
    """

    harness: str
    """The harness's name, as rollouts have it."""
    source: str = ""
    """The source whose rollouts this is for; "" means every source that has no binding of its own."""
    adapter: str = ""
    """Name of a shipped adapter, or "module:Class"; "" means the harness's name."""
    settings: dict[str, object] = {}
    """The adapter's settings."""
    variants: dict[str, dict[str, object]] = {}
    """Settings that go over these for the rollouts that name a variant."""
    launch: Literal["", "pool", "process"] = ""
    """How it is launched; "" means `control.launch`."""
    reward: str = ""
    """The reward expression for these rollouts; "" means that of `control.reward`."""

    def __post_init__(self) -> None:
        """Raises ValueError for a reward that is no expression; `convert` adds the key."""
        check_reward(self.reward)

    def of(self, spec: RolloutSpec) -> dict[str, object]:
        """The settings of a rollout, under its variant. Raises ConfigurationError where there is no such variant."""
        if not spec.variant:
            return self.settings
        if spec.variant not in self.variants:
            raise ConfigurationError(
                f"rollout {spec.rollout_id}: source {spec.source!r} has no variant {spec.variant!r} of {spec.harness}",
                "name it in the run file's sources, under harness.variants",
            )
        return self.settings | self.variants[spec.variant]
