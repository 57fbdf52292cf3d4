"""Routed experts as servers send them, brought to one form, and as vLLM and the embedded engine write them. Pure.

Invariants (tests/engines/test_experts.py): the numbers are those that came, or EngineError; nothing is cut or wrapped.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt

from whippletree.errors import EngineError
from whippletree.types import RoutedExperts

LARGEST = 2**15 - 1


def routed_experts(experts: npt.NDArray[Any], name: str, start: int = 0) -> RoutedExperts:
    """Integers of shape (tokens, layers, experts per token), for the tokens from place `start` on. Raises EngineError."""
    if experts.ndim != 3 or experts.dtype.kind not in "iu":
        raise EngineError(f"{name}: routed experts of shape {experts.shape}, {experts.dtype}", "check the server's version")
    if experts.size and not 0 <= int(experts.min()) <= int(experts.max()) <= LARGEST:
        raise EngineError(f"{name}: a routed expert is not in 0..{LARGEST}", "check the server's version")
    tokens, layers, used = experts.shape
    return RoutedExperts(start=start, shape=(tokens, layers, used), data=np.ascontiguousarray(experts, dtype="<i2").tobytes())


def npy_experts(text: str, name: str) -> RoutedExperts:
    """Routed experts out of base64 of NumPy's file format, shape (tokens, layers, experts per token). Raises EngineError."""
    try:
        experts = np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise EngineError(f"{name}: routed experts cannot be read: {error}", "check the server's version") from error
    return routed_experts(experts, name)


def npy_text(experts: RoutedExperts) -> str:
    """What `npy_experts` reads."""
    file = io.BytesIO()
    np.save(file, np.frombuffer(experts.data, dtype="<i2").reshape(experts.shape), allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode("ascii")
