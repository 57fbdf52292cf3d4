"""Adapters of unmodified agents, one file each. `load_harness` finds one by name, or a user's own by "module:Class"."""

from __future__ import annotations

import importlib

from whippletree.errors import ConfigurationError
from whippletree.protocols import Harness

__all__ = ["NAMES", "load_harness"]

NAMES = {
    "mini-swe-agent": "whippletree.harnesses.mini_swe_agent:MiniSweAgent",
    "whitebox": "whippletree.harnesses.whitebox:Whitebox",
}


def load_harness(name: str) -> Harness:
    """The adapter called `name`; its package is not imported yet. Raises ConfigurationError."""
    target = NAMES.get(name, name)
    module, separator, attribute = target.partition(":")
    if not separator:
        cause = f"harness {name!r} is not known"
        raise ConfigurationError(cause, f"use one of {', '.join(sorted(NAMES))}, or module:Class for your own")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"harness {name!r}: {error}", "check that the module can be imported here") from error
    harness = kind()
    if not isinstance(harness, Harness):
        raise ConfigurationError(f"harness {name!r} is not a Harness", "see whippletree.protocols.Harness for what it needs")
    return harness
