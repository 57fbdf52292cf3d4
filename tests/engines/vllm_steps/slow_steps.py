"""A logits processor for vLLM that changes nothing and takes its time: a tiny model's steps then last as long as a real one's.

vLLM's engine core and its worker poll each other without sleeping. On a machine with two cores a model without a computation of
its own keeps both busy, and the process with the HTTP routes may not run before the turn is over: a pause comes too late.
"""

from __future__ import annotations

import time

import torch
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

STEP_SECONDS = 0.004


class SlowSteps(LogitsProcessor):
    """Sleeps STEP_SECONDS at every step that samples."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        """vLLM's own signature."""

    def is_argmax_invariant(self) -> bool:
        """False: processors that are invariant do not run for greedy requests."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Nothing to keep."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits as they came, later."""
        time.sleep(STEP_SECONDS)
        return logits
