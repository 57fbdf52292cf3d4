"""Adapters of unmodified agents, one file each. `load_harness` finds one by name, or a user's own by "module:Class"."""

from __future__ import annotations

from pathlib import Path

from whippletree.configuration import Config
from whippletree.errors import ConfigurationError
from whippletree.harnesses.packages import Packaged
from whippletree.loading import load_named
from whippletree.protocols import Harness

__all__ = ["NAMES", "load_harness", "shipped_settings"]

NAMES = {
    "aider": "whippletree.harnesses.aider:Aider",
    "callable": "whippletree.harnesses.python_callable:PythonCallable",
    "claude-code": "whippletree.harnesses.claude_code:ClaudeCode",
    "codex": "whippletree.harnesses.codex:Codex",
    "command": "whippletree.harnesses.command:Command",
    "gemini-cli": "whippletree.harnesses.gemini_cli:GeminiCli",
    "mini-swe-agent": "whippletree.harnesses.mini_swe_agent:MiniSweAgent",
    "mistral-vibe": "whippletree.harnesses.mistral_vibe:MistralVibe",
    "opencode": "whippletree.harnesses.opencode:OpenCode",
    "openhands": "whippletree.harnesses.openhands:OpenHands",
    "pi": "whippletree.harnesses.pi:Pi",
    "qwen-code": "whippletree.harnesses.qwen_code:QwenCode",
    "whitebox": "whippletree.harnesses.whitebox:Whitebox",
}


def load_harness(name: str, directory: Path | None = None) -> Harness:
    """The adapter called `name`; its package is not imported yet. `directory`: where harnesses are installed (None: the user's
    cache folder). Raises ConfigurationError."""
    if ":" not in name and name not in NAMES:
        cause = f"harness {name!r} is not known"
        raise ConfigurationError(cause, f"use one of {', '.join(sorted(NAMES))}, or module:Class for your own")
    kind = load_named("harness", NAMES.get(name, name))
    if not callable(kind):
        raise ConfigurationError(f"harness {name!r} is not a class", "see whippletree.protocols.Harness for what it needs")
    harness = kind(directory) if isinstance(kind, type) and issubclass(kind, Packaged) else kind()
    if not isinstance(harness, Harness):
        raise ConfigurationError(f"harness {name!r} is not a Harness", "see whippletree.protocols.Harness for what it needs")
    return harness


def shipped_settings() -> dict[str, type[Config]]:
    """The settings' struct of each shipped harness that has one, by name."""
    found = {name: load_harness(name).settings for name in sorted(NAMES)}
    return {name: settings for name, settings in found.items() if settings is not None}
