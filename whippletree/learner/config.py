"""Settings of the learner."""

from __future__ import annotations

from typing import Literal

from whippletree.configuration import Config


class LearnerConfig(Config):
    """How rows become an update."""

    learning_rate: float = 5e-4
    """AdamW's learning rate after the warm-up."""
    warmup_steps: int = 5
    """Updates over which the learning rate rises linearly from a fraction to its full value."""
    beta1: float = 0.9
    """AdamW's first-moment decay."""
    beta2: float = 0.99
    """AdamW's second-moment decay."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this 2-norm; 0 switches clipping off."""
    clip_low: float = 0.2
    """Lower width of the PPO clip: ratios below 1 - clip_low get no gradient for negative advantages."""
    clip_high: float = 0.2
    """Upper width of the PPO clip: ratios above 1 + clip_high get no gradient for positive advantages."""
    loss_weights: Literal["rollout-mean", "token-mean", "sequence-mean"] = "rollout-mean"
    """How tokens are weighted in a batch: Eq. 16 (rollout-mean), Eq. 14 (token-mean), Eq. 15 (sequence-mean)."""
    normalise_std: bool = True
    """Divide group advantages by the group's standard deviation (GRPO); false leaves them centred only."""
    train_top_layers: int = 0
    """Train only this many layers from the top, and the last norm; 0 trains every parameter."""
    token_budget: int = 512
    """Tokens of one row; a longer sample gets a row of its own."""
    packing: Literal["tree", "rows", "single"] = "tree"
    """How samples are laid into rows: those that begin alike behind one copy of that ("tree"), end to end ("rows"), or one
    by one ("single"), which models need whose layers carry a state along the sequence."""
    attention: Literal["auto", "runs", "flex", "dense"] = "auto"
    """How attention in a row is computed: by runs ("runs"), with FlexAttention's block masks ("flex", a GPU), with a mask of
    the whole row ("dense"); "auto": block masks on a GPU, runs elsewhere, and dense where those cannot."""
    threads: int = 1
    """Torch threads of the learner process."""
    keep_checkpoints: int = 3
    """Checkpoints kept on disk, newest first; the first and the last step's are kept besides."""
    checkpoint_every: int = 1
    """Updates between checkpoints. After a crash, the updates since the last one are replayed from the store."""
    max_logprob_diff: float = 1e-3
    """The run stops when engine and learner logprobs of a known prompt differ by more than this after a weight sync."""
