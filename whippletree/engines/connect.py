"""Make the client of an engine that runs in another process.

Invariants (tests/engines/test_completions_connect.py): each client satisfies protocols.Engine; an unknown kind is refused.
"""

from __future__ import annotations

from typing import Literal

from whippletree.engines.completions import CompletionsEngine, Timeouts
from whippletree.engines.embedded.client import EmbeddedEngine
from whippletree.engines.vllm import VllmEngine
from whippletree.errors import ConfigurationError
from whippletree.protocols import Engine

EngineKind = Literal["embedded", "vllm", "completions"]


def connect(kind: str, url: str, *, model: str = "policy", api_key: str = "", timeouts: Timeouts | None = None) -> Engine:
    """Client of the engine at `url`: "embedded", "vllm", or "completions" for any server with token-in /v1/completions.

    Nothing is sent yet. Raises ConfigurationError for an unknown kind or a malformed URL.
    """
    kinds: dict[str, type[CompletionsEngine]] = {
        "embedded": EmbeddedEngine,
        "vllm": VllmEngine,
        "completions": CompletionsEngine,
    }
    if kind not in kinds:
        raise ConfigurationError(f"engine kind {kind!r} cannot be reached by URL", f"one of {', '.join(sorted(kinds))}")
    return kinds[kind](url, model=model, api_key=api_key, timeouts=timeouts)
