"""Settings of the learner."""

from __future__ import annotations

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
    train_top_layers: int = 0
    """Train only this many layers from the top, and the last norm; 0 trains every parameter."""
    token_budget: int = 512
    """Tokens of one packed row; a longer sample gets a row of its own."""
    threads: int = 1
    """Torch threads of the learner process."""
    keep_checkpoints: int = 3
    """Checkpoints kept on disk, newest first; the first and the last step's are kept besides."""
    checkpoint_every: int = 1
    """Updates between checkpoints. After a crash, the updates since the last one are replayed from the store."""
    max_logprob_diff: float = 1e-3
    """The run stops when engine and learner logprobs of a known prompt differ by more than this after a weight sync."""
