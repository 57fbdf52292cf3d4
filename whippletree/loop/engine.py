"""Clients of the run's engine, by its configuration."""

from __future__ import annotations

from whippletree.engines.config import EmbeddedConfig, EngineConfig, VllmConfig
from whippletree.engines.connect import connect
from whippletree.engines.scripted import ScriptedEngine
from whippletree.protocols import Engine


def connect_engine(config: EngineConfig, url: str) -> Engine:
    """A client of the engine at `url`; the scripted engine lives in the process that asks for it."""
    match config:
        case EmbeddedConfig():
            return connect("embedded", url, model=config.name)
        case VllmConfig():
            return connect("vllm", url, model=config.name)
        case _:
            return ScriptedEngine(seed=config.seed, vocabulary=config.vocabulary, context=config.context)
