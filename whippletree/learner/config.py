"""Settings of the learner."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from whippletree.configuration import Amount, Config, Count, Natural, Share
from whippletree.errors import ConfigurationError
from whippletree.learner.losses.config import (
    CorrectionConfig,
    CustomLoss,
    KLConfig,
    LossConfig,
    PPOLoss,
    Width,
    check_correction,
    needs_all_rows,
)


class NoCritic(Config, tag="none", tag_field="kind"):
    """No critic: advantages come from rewards alone."""


class HeadCritic(Config, tag="head", tag_field="kind"):
    """A value head on the policy's last hidden state; its loss trains the policy's layers too."""

    coefficient: Width = 0.1
    """Weight of the value loss beside the policy's."""
    clip: Width = 0.2
    """Values may move this far from what they were before the update; 0 switches the clip off."""
    learning_rate: Width = 1e-3
    """AdamW's learning rate of the head, which has an optimiser of its own; the policy's schedule applies."""


class ModelCritic(Config, tag="model", tag_field="kind"):
    """A value model of its own: the same kind of network as the policy, with a value head."""

    path: str = ""
    """Hugging Face directory that it starts from; empty: the policy's."""
    clip: Width = 0.2
    """Values may move this far from what they were before the update; 0 switches the clip off."""
    learning_rate: Width = 1e-3
    """AdamW's learning rate of the value model, which has an optimiser of its own; the policy's schedule applies."""


class LoRAConfig(Config):
    """Low-rank adapters instead of the whole model (the extra `lora`)."""

    rank: Annotated[int, Meta(ge=0)] = 0
    """Rank of the adapters; 0 trains the model's own weights."""
    alpha: Width = 32.0
    """Adapters are scaled by alpha / rank."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of the linear layers that get one."""
    seed: Natural = 0
    """Seed of the adapters' first values."""


class MoEConfig(Config):
    """Mixtures of experts."""

    aux_loss: Width = 0.0
    """Weight of the term that keeps the experts evenly used, a mean over the update's tokens."""
    replay: bool = False
    """Tokens go to the experts that rows have on record (`Row.routing`) instead of the router's own choice."""

    @property
    def wanted(self) -> bool:
        """Whether the model must be one with experts."""
        return self.replay or self.aux_loss > 0


class RanksConfig(Config):
    """Processes that train one model together. Their number is data · context · tensor; torchrun starts them."""

    data: Annotated[int, Meta(ge=1)] = 1
    """Ranks that each run rows of their own."""
    context: Annotated[int, Meta(ge=1)] = 1
    """Ranks that share the tokens of a row; divides the attention heads that a rank has."""
    tensor: Annotated[int, Meta(ge=1)] = 1
    """Ranks that share the weights of each layer, by the model's own plan; divides the model's key-value heads."""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 600.0
    """Seconds that a rank waits for the others inside an update before the learner stops."""

    @property
    def world(self) -> int:
        """Processes in all."""
        return self.data * self.sharing

    @property
    def sharing(self) -> int:
        """Ranks that run the same rows."""
        return self.context * self.tensor


CriticConfig = NoCritic | HeadCritic | ModelCritic


class LearnerConfig(Config):
    """How rows become an update."""

    learning_rate: Amount = 5e-4
    """AdamW's learning rate after the warm-up."""
    warmup_steps: Natural = 5
    """Updates over which the learning rate rises linearly from a fraction to its full value."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up: stay, or fall linearly or along half a cosine to `schedule_floor`."""
    schedule_steps: Annotated[int, Meta(ge=0)] = 0
    """Update at which the floor is reached; 0: the run's last one."""
    schedule_floor: Share = 0.0
    """Learning rate at the end of the schedule, as a share of `learning_rate`."""
    beta1: Amount = 0.9
    """AdamW's first-moment decay."""
    beta2: Amount = 0.99
    """AdamW's second-moment decay."""
    weight_decay: Amount = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: Amount = 1.0
    """Gradients are scaled down to this 2-norm; 0 switches clipping off."""
    loss: LossConfig = PPOLoss()
    """The loss."""
    old_logprobs: Literal["sampler", "learner"] = "sampler"
    """What a loss takes its ratio to: the sampler's recorded logprobs, or the learner's own of the weights before the update
    (then `correction` can account for the difference between the two: decoupled PPO)."""
    updates: Annotated[int, Meta(ge=1)] = 1
    """Updates that a batch is spread over, one after another; a rollout is within one of them. Engines get the weights after
    the last. Warm-up and schedule count updates."""
    passes: Annotated[int, Meta(ge=1)] = 1
    """Optimiser steps that one update makes, each over all of its rows, before the next update of the batch."""
    correction: CorrectionConfig = CorrectionConfig()
    """Corrections between sampler and learner."""
    kl: KLConfig = KLConfig()
    """KL to a reference policy."""
    entropy_bonus: Width = 0.0
    """Weight of the mean entropy of each token's distribution, which is then maximised."""
    teacher: str = ""
    """Directory of a teacher model with the policy's vocabulary, which the learner runs itself; empty: the rows bring its
    logprobs."""
    teacher_top: Annotated[int, Meta(ge=1)] = 20
    """Best tokens of the teacher at each position that `distill-forward` learns from."""
    critic: CriticConfig = NoCritic()
    """The critic of PPO."""
    precision: Literal["float32", "bf16"] = "float32"
    """bf16: the model's layers compute in bfloat16 (autocast); weights, logits and logprobs stay float32."""
    activation_checkpointing: bool = False
    """Keep no activations inside the layers and compute them again in the backward pass: less memory, a third more time."""
    logit_tokens: Annotated[int, Meta(ge=1)] = 1024
    """Trained tokens whose logits are held at once; beyond that they are computed in pieces, and again in the backward pass."""
    lora: LoRAConfig = LoRAConfig()
    """Low-rank adapters; engines and exports get merged weights."""
    train_top_layers: Natural = 0
    """Train only this many layers from the top, and the last norm; 0 trains every parameter."""
    token_budget: Count = 512
    """Tokens of one row; a longer sample gets a row of its own."""
    packing: Literal["tree", "rows", "single"] = "tree"
    """How samples are laid into rows: those that begin alike behind one copy of that ("tree"), end to end ("rows"), or one
    by one ("single"), which models need whose layers carry a state along the sequence."""
    attention: Literal["auto", "runs", "flex", "dense"] = "auto"
    """How attention in a row is computed: by runs ("runs"), with FlexAttention's block masks ("flex", a GPU), with a mask of
    the whole row ("dense"); "auto": block masks on a GPU, runs elsewhere, and dense where those cannot."""
    threads: Count = 1
    """Torch threads of the learner process."""
    moe: MoEConfig = MoEConfig()
    """What a model with experts does besides."""
    ranks: RanksConfig = RanksConfig()
    """Several processes instead of one."""
    keep_checkpoints: Natural = 3
    """Checkpoints kept on disk, newest first; the first and the last step's are kept besides."""
    checkpoint_every: Natural = 1
    """Updates between checkpoints. After a crash, the updates since the last one are replayed from the store."""
    max_logprob_diff: Amount = 1e-3
    """The run stops when engine and learner logprobs of a known prompt differ by more than this after a weight sync."""

    @property
    def trains_all_rows(self) -> bool:
        """Whether a rollout has a gradient even where its advantage is zero, so that its rows must not be left out."""
        return bool(
            needs_all_rows(self.loss) or self.kl.coefficient or self.entropy_bonus or not isinstance(self.critic, NoCritic)
        )

    @property
    def needs_proximal(self) -> bool:
        """Whether logprobs of the weights before the update matter, which later passes no longer know."""
        corrected = self.correction.truncate != "off" or self.correction.mask != "off"
        rewarded = bool(self.kl.coefficient) and self.kl.where == "reward"
        return self.old_logprobs == "learner" or corrected or rewarded or isinstance(self.loss, CustomLoss)

    @property
    def needs_entropy(self) -> bool:
        """Whether the entropy of each token's distribution is computed."""
        return bool(self.entropy_bonus) or (isinstance(self.loss, CustomLoss) and self.loss.entropy)

    def check(self, run_steps: int = 0) -> None:
        """Raises ConfigurationError for settings that do not go together. `run_steps`: updates of the run."""
        end = self.schedule_steps or run_steps
        if self.schedule != "constant" and end <= self.warmup_steps:
            raise ConfigurationError(
                f"learner.schedule = {self.schedule!r} ends at update {end}, but the warm-up takes {self.warmup_steps}",
                "set learner.schedule_steps",
            )
        if self.lora.rank and self.train_top_layers:
            raise ConfigurationError("learner.lora.rank and learner.train_top_layers are both set", "use one of them")
        check_correction(self.loss, self.correction, self.old_logprobs)
        self._check_ranks()
        if isinstance(self.critic, HeadCritic) and self.critic.coefficient == 0:
            raise ConfigurationError("learner.critic.coefficient = 0 trains no value head", "give it a weight")

    def _check_ranks(self) -> None:
        if self.ranks.context > 1 and (self.packing == "single" or self.attention in ("flex", "dense")):
            raise ConfigurationError(
                "learner.ranks.context shares a row among ranks by runs",
                'set learner.attention = "runs", and learner.packing = "tree" or "rows"',
            )
