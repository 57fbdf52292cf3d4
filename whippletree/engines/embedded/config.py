"""Settings of the embedded engine.

Invariants (tests/engines/test_embedded_process.py): every field can be set on the command line under its own name.
"""

from __future__ import annotations

from typing import Literal

from whippletree.configuration import Amount, Config, Count, Natural


class EmbeddedConfig(Config, tag_field="kind", tag="embedded"):
    """The embedded torch engine, one process on this machine's CPU."""

    model: str = ""
    """Directory of the model in Hugging Face layout (config.json, *.safetensors); Llama, Qwen3 or Qwen3-MoE."""

    policy_version: Natural = 0
    """Policy version of the weights in `model`; a run sets it when it starts an engine anew in mid-run."""

    host: str = "127.0.0.1"
    """Address to bind. Anyone who reaches it can swap the weights, so keep it on loopback."""

    port: Natural = 0
    """TCP port; 0 takes a free one and writes it to the ready file."""

    threads: Count = 1
    """Torch threads. More than one pays for models above some 10 M parameters, on idle cores only."""

    slots: Natural = 64
    """Requests computed at once, and conversations whose KV cache is kept for prefix reuse."""

    context: Count = 1024
    """Longest prompt + answer in tokens, or the model's own limit where that is lower. Memory for the cache grows with
    slots × context as it is touched."""

    prefill_tokens: Count = 512
    """Prompt tokens computed per step at most, so that a long prompt cannot stall the requests that are decoding."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of weights and cache. Logprobs are computed in float32 either way; only float32 agrees closely with training."""

    seed: Natural = 0
    """Seed of requests that bring none. Such a request draws from (seed, request id), whatever else is in the batch."""

    stream_interval: Amount = 0.02
    """Seconds over which tokens of one stream are gathered into a chunk; the first and the last are sent at once."""

    name: str = "policy"
    """Name under which the model is listed. Requests may name any model: there is only one."""
