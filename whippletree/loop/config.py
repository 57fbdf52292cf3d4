"""The run file: one table per room, each typed beside its owner."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from whippletree.batching.config import PER_CALL, BatchingConfig
from whippletree.configuration import Amount, Config, Count, DirectoryName, Natural, Share
from whippletree.control.config import ControlConfig, check_reward, check_rubric_sources
from whippletree.engines.config import EmbeddedConfig, EngineConfig
from whippletree.errors import ConfigurationError
from whippletree.gateway.config import GatewayConfig
from whippletree.learner.config import LearnerConfig, NoCritic
from whippletree.learner.losses.config import CustomLoss, DistillReverseLoss
from whippletree.loop.curriculum import CurriculumConfig
from whippletree.loop.models import ModelConfig, TinyModel
from whippletree.loop.sources import TaskSet
from whippletree.rendering.config import RenderingConfig
from whippletree.sandboxes.config import SandboxConfig
from whippletree.store.config import StoreConfig
from whippletree.traces.config import TracesConfig


class RunSection(Config):
    """[run]"""

    name: DirectoryName = "run"
    """Name of the run; its directory is `directory`/`name` unless --run-dir says otherwise."""
    directory: str = "runs"
    """Where run directories are made, relative to the working directory."""
    seed: Natural = 1
    """Seed of everything the run draws itself: task order, warm-up, initial weights, the engine's sampler."""


class HarnessSection(Config):
    """[sources.harness]"""

    name: str = "mini-swe-agent"
    """Name of a shipped harness (see `whippletree harness list`), or "module:Class"."""
    settings: dict[str, object] = {}
    """The harness's own settings; see `whippletree harness show NAME`."""
    variants: dict[str, dict[str, object]] = {}
    """Named variations: settings that go over `settings`. The source's training groups run under each in turn, a whole group
    under one; evaluations run under `settings` alone."""
    launch: Literal["", "pool", "process"] = ""
    """How it is launched for this source; empty: as `control.launch` says. Sources of one run may differ."""


class SourceSection(Config):
    """[[sources]]"""

    name: str
    """Name of the source; it is in every rollout's record."""
    tasks: TaskSet
    """Where its tasks come from."""
    harness: HarnessSection = HarnessSection()
    """The harness that its rollouts run in."""
    share: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    """Its share of the training groups of every update, relative to the other sources. 0: its held-out tasks are evaluated, and
    nothing of it is trained; for example, another harness."""
    curriculum: CurriculumConfig | None = None
    """Draw its tasks by their recent pass rate; left out: each once an epoch."""
    reward: str = ""
    """The reward of its tasks from their verifiers' named scores; empty: that of `control.reward`."""

    def __post_init__(self) -> None:
        """Raises ValueError for a reward that is no expression; `convert` adds the key."""
        check_reward(self.reward)


class SamplingSection(Config):
    """[sampling]"""

    temperature: Amount = 1.0
    """Temperature of every call of the run; losses are computed at the same temperature."""
    top_p: Share = 1.0
    """Nucleus sampling; 1 samples from the whole distribution, which training wants."""
    max_tokens: Count = 48
    """Most tokens that one call may sample."""


class TeacherConfig(Config):
    """[teacher]: a model on a server whose logprobs of what was sampled `learner.loss.name = "distill-reverse"` learns from."""

    kind: Literal["embedded", "vllm", "sglang", "completions", "echo"] = "embedded"
    """What the server speaks: "embedded", "vllm" and "completions" (any /v1/completions that takes token ids and
    `prompt_logprobs`), "sglang", or "echo" (/v1/completions with `echo` and `logprobs`)."""
    url: str = ""
    """Root URL of the server; empty with kind = "embedded": the learner starts an embedded engine for `directory`."""
    directory: str = ""
    """Directory of the teacher's model, whose tokenizer is compared with the policy's; empty: the server is asked, by vLLM's
    /tokenize."""
    name: str = "policy"
    """Name under which the server serves it."""
    api_key_file: str = ""
    """File whose first line is the server's key; empty: none is sent."""
    at_once: Annotated[int, msgspec.Meta(ge=1)] = 8
    """Requests in flight."""
    limit: Annotated[float, msgspec.Meta(gt=0)] = 300.0
    """Seconds that a batch waits for the teacher once its rollouts are over. What it has not scored then is left out of the
    loss, and counted."""
    context: Annotated[int, msgspec.Meta(ge=2)] = 4096
    """Longest sequence of an engine that the learner starts, tokens."""

    def __post_init__(self) -> None:
        """Raises ValueError where nobody is named; `convert` adds the key."""
        if not self.url and (self.kind != "embedded" or not self.directory):
            raise ValueError("give the server's url (or, for an embedded engine, the directory of the model)")


class LoopSection(Config):
    """[loop]"""

    kind: Literal["synchronous", "collocated", "asynchronous"] = "collocated"
    """Which training loop: wait for every rollout of a step; update when enough groups are complete, sampling held meanwhile;
    or the same while sampling goes on."""
    steps: Natural = 40
    """Batches in all. Each is one step of the loop: one update, or as many as `learner.updates` says, then new weights for the
    engines."""
    groups_per_step: Count = 8
    """Groups in one batch."""
    group_size: Count = 8
    """Rollouts in one group."""
    groups_in_flight: Natural = 16
    """Collocated: groups that are kept in flight, groups_per_step of them for the step at hand (and never fewer)."""
    max_staleness: Annotated[int, msgspec.Meta(ge=0)] = 4
    """Policy versions that a trained token may be old. Collocated and asynchronous: a sample with an older one is left out of
    the loss and counted. Asynchronous: no more groups are started than (policy version + this + 1) x groups_per_step."""
    replace_dropped: bool = False
    """Groups that batching.filters drop are replaced by others of their source, so that an update has groups_per_step groups
    with something to teach. Off: they count as groups of the update."""
    replace_at_most: Annotated[int, msgspec.Meta(ge=1)] = 4
    """With replace_dropped: when this many times a source's quota of groups was dropped, the update goes on without, and says
    so in its alarms."""
    eval_every: Natural = 20
    """Updates between evaluations; the first and the last weights are always evaluated. 0: only those two. The synchronous loop
    waits for each; the others go on training beside it and wait for the last one."""
    eval_samples: Count = 1
    """Rollouts per held-out task in an evaluation."""
    eval_limit: Annotated[float, msgspec.Meta(ge=0)] = 14_400.0
    """Seconds that one evaluation may take; rollouts that are not over then are cancelled and counted as `cut`. 0: no limit."""
    max_attempts: Count = 3
    """Attempts that a rollout gets when the infrastructure fails."""
    peer_limit: Annotated[float, msgspec.Meta(gt=0)] = 300.0
    """Seconds that the loop waits for a controller, gateway or engine that is not there, before the run stops with an error
    that names it. Longer than their restart takes."""
    stall_limit: Amount = 600.0
    """Seconds without any change of any rollout after which the run stops with an error."""
    max_failed_share: Share = 0.5
    """The run stops when more than this share of a step's rollouts failed for reasons other than the model."""


class RunConfig(Config):
    """A run file."""

    sources: list[SourceSection]
    """Where tasks come from and in which harness they run."""
    run: RunSection = RunSection()
    """Name, directory, seed."""
    model: ModelConfig = TinyModel()
    """The model to train."""
    sampling: SamplingSection = SamplingSection()
    """How the run samples."""
    loop: LoopSection = LoopSection()
    """The training loop."""
    batching: BatchingConfig = BatchingConfig()
    """From rewards to what a token counts for: shaping, advantages, filters, loss weights."""
    learner: LearnerConfig = LearnerConfig()
    """The optimiser side."""
    teacher: TeacherConfig | None = None
    """A teacher on a server, for distillation; left out: none (`learner.teacher` is one that the learner runs itself)."""
    engine: EngineConfig = EmbeddedConfig()
    """The inference engine."""
    gateway: GatewayConfig = GatewayConfig()
    """The model boundary."""
    rendering: RenderingConfig = RenderingConfig()
    """Messages to tokens."""
    control: ControlConfig = ControlConfig()
    """Rollouts at once, launch mode, deadlines."""
    sandbox: SandboxConfig = SandboxConfig()
    """The machine of an attempt."""
    store: StoreConfig = StoreConfig()
    """The durable record, and how long its payloads are kept."""
    traces: TracesConfig = TracesConfig()
    """Which calls are trained."""

    def __post_init__(self) -> None:
        """Raises ValueError where a source's launch and the run's do not go together; `convert` adds the key."""
        if self.control.launch == "kubernetes" and any(source.harness.launch for source in self.sources):
            raise ValueError('sources.harness.launch: with control.launch = "kubernetes" every attempt is a Job')

    def check(self) -> None:
        """Raises ConfigurationError for settings of different rooms that do not go together."""
        if self.batching.advantages.estimator == PER_CALL and not isinstance(self.learner.critic, NoCritic):
            raise ConfigurationError(
                'batching.advantages.estimator = "per-call" and a critic (learner.critic) both give advantages',
                "use one of them",
            )
        if self.teacher is not None:
            self._check_teacher()
        check_rubric_sources(self.control, [source.name for source in self.sources])

    def _check_teacher(self) -> None:
        if self.learner.teacher:
            raise ConfigurationError("[teacher] and learner.teacher are both set", "use one of them")
        if not isinstance(self.learner.loss, DistillReverseLoss | CustomLoss):
            name = type(self.learner.loss).__struct_config__.tag
            raise ConfigurationError(
                f"[teacher] is set, and {name} has no use for it", 'set learner.loss.name = "distill-reverse"'
            )
        if self.sampling.temperature != 1.0:
            raise ConfigurationError(
                f"a server scores at temperature 1, and the run samples at {self.sampling.temperature:g}",
                "set sampling.temperature = 1, or let the learner run the teacher (learner.teacher)",
            )
