"""The SFT file: what to learn from, and how.

Invariants (tests/loop/test_sft_config.py):
- the loss is the negative log-likelihood of the replies; another one is refused;
- what the loop of this room does not do (several ranks, a critic) is refused with what to set.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from whippletree.configuration import Config, Count, DirectoryName, Natural
from whippletree.errors import ConfigurationError
from whippletree.learner.config import LearnerConfig, NoCritic
from whippletree.learner.losses.config import PPOLoss, SFTLoss
from whippletree.loop.models import DirectoryModel, ModelConfig
from whippletree.rendering.config import RenderingConfig


class ExportConfig(Config):
    """[export]: which calls of a run are worth learning from."""

    format: Literal["chat", "tokens"] = "chat"
    """"chat": messages, tools and the reply to learn, for any model. "tokens": the recorded ids and which of them are trained,
    exactly as they were sampled, for models with the same tokenizer; calls without ids are left out."""
    min_reward: float = 1.0
    """Rollouts with at least this reward."""
    purpose: Literal["train", "eval", "all"] = "all"
    """Training rollouts, those of evaluations, or both. Held-out tasks stay unseen with "train"."""
    harnesses: tuple[str, ...] = ()
    """Only rollouts in these harnesses; empty: all."""
    sources: tuple[str, ...] = ()
    """Only rollouts of these sources; empty: all."""
    roles: tuple[Literal["main", "subagent", "compaction", "side"], ...] = ("main", "subagent", "compaction")
    """Roles of calls that are learned from."""
    deduplicate: bool = True
    """Leave out what says the same as an example that is there already: the same prompt, tools and reply."""
    balance: bool = False
    """Leave out examples, at random, until every harness has about as many trained tokens as the one with the fewest."""
    tokens_per_harness: Annotated[int, msgspec.Meta(ge=0)] = 0
    """At most so many trained tokens of each harness, chosen at random; 0: no limit."""
    seed: Natural = 1
    """Seed of these choices."""


class SftSection(Config):
    """[sft]"""

    name: DirectoryName = "sft"
    """Name; the directory is `directory`/`name` unless --run-dir says otherwise."""
    directory: str = "runs"
    """Where it is made, relative to the working directory."""
    seed: Natural = 1
    """Seed of the order of examples, of what is held out, and of a model that is made from scratch."""
    epochs: Count = 1
    """How often each example is learned from."""
    steps: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Updates at most; 0: all of the epochs."""
    batch_tokens: Count = 4096
    """Trained tokens of one update; the examples of a rollout go into one update, so one may have more."""
    longest: Count = 32_768
    """Examples of more tokens, prompt and reply together, are left out and counted."""
    heldout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.05
    """Share of the tasks whose examples are not learned from but measured; at least one task, unless it is 0."""
    measure_every: Count = 20
    """Updates between measurements of the held-out loss; before the first and after the last it is always measured."""
    checkpoint_every: Count = 50
    """Updates between checkpoints; after a crash, --resume goes on from the last one."""


class SftConfig(Config):
    """An SFT file."""

    data: list[str]
    """Exports (`whippletree export sft`), or directories of runs, of which an export is made by `[export]`."""
    model: ModelConfig = DirectoryModel(path="")
    """The model to begin with, as in a run file; an empty directory: the one that the first run of `data` began with."""
    sft: SftSection = SftSection()
    """How long and in which pieces."""
    export: ExportConfig = ExportConfig()
    """What is taken of runs."""
    rendering: RenderingConfig = RenderingConfig()
    """Messages to tokens, for exports of format "chat"; as the model will be served."""
    learner: LearnerConfig = LearnerConfig(loss=SFTLoss(), learning_rate=1e-4)
    """The optimiser side, as in a run file; the loss is `sft` where it is not named."""

    def check(self) -> None:
        """Raises ConfigurationError for what does not go together."""
        if not self.data:
            raise ConfigurationError("data is empty", "name an export or a run")
        if not isinstance(self.learner.loss, SFTLoss) and self.learner.loss != PPOLoss():
            raise ConfigurationError(f"learner.loss is {type(self.learner.loss).__name__}", 'leave it out: the loss is "sft"')
        if not isinstance(self.learner.critic, NoCritic):
            raise ConfigurationError("learner.critic has nothing to learn here", "leave it out")
        if self.learner.ranks.world > 1:
            raise ConfigurationError("supervised fine-tuning runs in one process", "leave learner.ranks out")

    @property
    def optimiser(self) -> LearnerConfig:
        """The learner's settings with the loss that there is."""
        return msgspec.structs.replace(self.learner, loss=SFTLoss())
