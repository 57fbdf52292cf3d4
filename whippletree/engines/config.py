"""Settings of engines: one table [engine], whose `kind` says which.

Invariants (tests/engines/test_completions_connect.py): every kind is told by its tag, and an unknown kind or key is refused.
"""

from __future__ import annotations

from typing import Literal

from whippletree.configuration import Config
from whippletree.engines.embedded.config import EmbeddedConfig

__all__ = ["EmbeddedConfig", "EngineConfig", "ScriptedConfig", "VllmConfig"]


class VllmConfig(Config, tag_field="kind", tag="vllm"):
    """A vLLM server: one that runs already (`url`), or one that the run starts with `python`."""

    url: str = ""
    """Root URL of a running server (http://10.0.0.7:8000), started with the flags that docs/vllm.md lists; empty: start one."""

    python: str = ""
    """Interpreter of the environment that vLLM is installed in, when the run starts the server."""

    model: str = ""
    """Directory of the model in Hugging Face layout; empty: the run fills in its own."""

    name: str = "policy"
    """Name under which the model is served."""

    host: str = "127.0.0.1"
    """Address that a started server binds. Anyone who reaches it can swap the weights, so keep it on loopback."""

    port: int = 8100
    """TCP port of a started server."""

    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the served weights. On CPU float32 agrees with the learner to about 3e-5, bfloat16 to about 0.05 on average."""

    context: int = 0
    """Longest prompt + answer in tokens; 0 takes the model's own limit."""

    max_running: int = 64
    """Requests computed at once."""

    eager: bool = True
    """Compute without compiled graphs: starts sooner. False is faster on GPUs."""

    threads: int = 1
    """CPU backend: OpenMP threads."""

    kv_cache_gib: int = 2
    """CPU backend: memory for the KV cache, GiB."""

    arguments: list[str] = []
    """More command line arguments for a started server, such as "--tensor-parallel-size=4". They win over the others."""

    environment: dict[str, str] = {}
    """More environment variables for a started server."""


class ScriptedConfig(Config, tag_field="kind", tag="scripted"):
    """No model: answers drawn from a seeded random distribution, for dry runs of everything else."""

    seed: int = 0
    """Seed of the distribution."""

    vocabulary: int = 512
    """Token ids run from 0 to this, exclusive."""

    context: int = 1024
    """Longest prompt + answer in tokens."""


EngineConfig = EmbeddedConfig | VllmConfig | ScriptedConfig
