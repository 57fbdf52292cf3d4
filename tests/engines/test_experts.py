"""Routed experts in one form, whatever a server sends."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest

from whippletree.engines.experts import npy_experts, routed_experts
from whippletree.engines.vllm_wire import vllm_piece
from whippletree.errors import EngineError


def npy(array: np.ndarray) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(buffer.getbuffer()).decode()


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int32", ">i4"])
def test_the_numbers_are_those_that_came(kind: str) -> None:
    array = (np.arange(5 * 3 * 2) % 200).reshape(5, 3, 2).astype(kind)
    experts = npy_experts(npy(array), "vllm")
    assert (experts.start, experts.shape) == (0, (5, 3, 2))
    assert np.frombuffer(experts.data, "<i2").reshape(5, 3, 2).tolist() == array.tolist()


@pytest.mark.parametrize("array", [np.zeros((5, 3)), np.zeros((5, 3, 2)), np.full((1, 1, 1), 40_000), np.full((1, 1, 1), -1)])
def test_other_shapes_types_and_numbers_are_refused(array: np.ndarray) -> None:
    with pytest.raises(EngineError, match="routed expert"):
        routed_experts(array, "engine")


@pytest.mark.parametrize("text", ["", "!", base64.b64encode(b"not numpy").decode()])
def test_what_is_no_array_is_refused(text: str) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        npy_experts(text, "vllm")


def test_vllm_tells_them_on_the_last_event() -> None:
    array = np.ones((6, 2, 2), "uint8")
    choice = {"token_ids": [5], "logprobs": {"content": [{"token_id": 5, "logprob": -0.1}]}, "finish_reason": "stop"}
    event = json.dumps({"choices": [{**choice, "routed_experts": npy(array)}]}).encode()
    experts = vllm_piece(event).experts
    assert experts is not None
    assert experts.shape == (6, 2, 2)
