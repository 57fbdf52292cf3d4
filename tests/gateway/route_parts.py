"""Addresses of the dialects' routes, filled in for tests, and a small request of each dialect."""

from __future__ import annotations

import re
from typing import Any

from whippletree.gateway.dialects.registry import DIALECTS

REQUESTS: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "go"}]},
    "messages": {"max_tokens": 50, "messages": [{"role": "user", "content": "go"}]},
    "responses": {"input": "go"},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "go"}]}]},
}
PARTS = {"version": "v1beta", "model": "policy", "operation": "compact"}


def filled(pattern: str) -> str:
    """An address that an aiohttp route pattern matches."""
    pattern = pattern.replace("{model:(?:models|tunedModels)/[^:]+}", "models/policy")
    method = "countTokens" if "{method:countTokens}" in pattern else "generateContent"
    return re.sub(r"\{(\w+)[^{}]*\}", lambda part: ({**PARTS, "method": method})[part[1]], pattern)


def path_of(dialect: str) -> str:
    """Where a turn is asked for in this dialect."""
    return filled(DIALECTS[dialect].generate_paths[0])
