"""Make the client of an engine.

Invariants (tests/engines/test_completions_connect.py): each client satisfies protocols.Engine; an unknown kind is refused.
"""

from __future__ import annotations

from whippletree.engines.completions import CompletionsEngine
from whippletree.engines.config import EmbeddedConfig, EngineConfig, HostedConfig, ScriptedConfig, SglangConfig, VllmConfig
from whippletree.engines.echo import EchoEngine
from whippletree.engines.embedded.client import EmbeddedEngine
from whippletree.engines.hosted import HostedEngine, read_key
from whippletree.engines.scripted import ScriptedEngine
from whippletree.engines.sglang import SglangEngine
from whippletree.engines.transport import Timeouts
from whippletree.engines.vllm import VllmEngine
from whippletree.errors import ConfigurationError
from whippletree.protocols import Engine


def connect(
    kind: str, url: str, *, model: str = "policy", api_key: str = "", timeouts: Timeouts | None = None, name: str = ""
) -> Engine:
    """Client of the engine at `url`: "embedded" (also a scripted engine's process), "vllm", "sglang", "completions" for any
    server with token-in /v1/completions, or "echo" for one that can only score, by repeating the prompt. `name` tells replicas
    of one kind apart.

    Nothing is sent yet. Raises ConfigurationError for an unknown kind or a malformed URL.
    """
    kinds: dict[str, type[CompletionsEngine]] = {
        "embedded": EmbeddedEngine,
        "vllm": VllmEngine,
        "sglang": SglangEngine,
        "completions": CompletionsEngine,
        "echo": EchoEngine,
    }
    if kind not in kinds:
        raise ConfigurationError(f"engine kind {kind!r} cannot be reached by URL", f"one of {', '.join(sorted(kinds))}")
    return kinds[kind](url, model=model, api_key=api_key, timeouts=timeouts, name=name)


def client_of(config: EngineConfig, url: str = "", *, name: str = "") -> Engine:
    """Client of the engine that a configuration describes. `url` is where it was started, where the run started it.

    A scripted engine without a URL lives in the process that asks. Raises ConfigurationError.
    """
    match config:
        case EmbeddedConfig():
            return connect("embedded", url, model=config.name, name=name)
        case VllmConfig():
            return connect("vllm", config.url or url, model=config.name, name=name)
        case SglangConfig():
            return SglangEngine(
                config.url or url,
                model=config.name,
                api_key=read_key(config.api_key_file),
                name=name,
                context=config.context,
                experts_per_token=config.experts_per_token,
            )
        case HostedConfig():
            return HostedEngine(config, name=name)
        case ScriptedConfig() if config.url:
            return connect("embedded", config.url, model=config.name, name=name or "scripted")
        case ScriptedConfig():
            return ScriptedEngine.configured(config, name=name)
