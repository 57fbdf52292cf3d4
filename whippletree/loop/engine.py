"""Clients of the run's engine, by its configuration."""

from __future__ import annotations

from whippletree.engines.config import EngineConfig
from whippletree.engines.connect import client_of
from whippletree.protocols import Engine


def connect_engine(config: EngineConfig, url: str) -> Engine:
    """A client of the engine at `url`; the scripted engine lives in the process that asks for it."""
    return client_of(config, url)
