"""whippletree/engines/echo.py, on recorded shapes of answers"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from whippletree.engines.echo import EchoEngine, echo_scores
from whippletree.errors import EngineError, EngineUnavailable


def reply(*values: Any) -> bytes:
    columns = {"tokens": ["t"] * len(values), "token_logprobs": list(values), "top_logprobs": None}
    return msgspec.json.encode({"choices": [{"text": "t", "logprobs": columns, "finish_reason": "length"}]})


def test_scores_are_those_of_the_prompt_without_what_was_sampled_behind_it() -> None:
    assert echo_scores(reply(None, -1.5, -2.0, -0.25), 3, "echo") == [-1.5, -2.0]
    assert echo_scores(reply(None, -1.5, -2.0), 3, "echo") == [-1.5, -2.0]  # the text ended there
    assert echo_scores(reply(None, -0.25), 1, "echo") == []


@pytest.mark.parametrize(
    "data",
    [
        reply(None, -1.5),
        reply(None, -1.5, -2.0, -0.25, -0.5),
        reply(None, None, -2.0, -0.25),
        reply(None, -9999.0, -2.0, -0.25),
        b'{"choices": [{"text": "t", "logprobs": null}]}',
        b'{"choices": []}',
        b'{"error": {"message": "no such model"}}',
    ],
)
def test_anything_else_is_an_error_and_no_score(data: bytes) -> None:
    with pytest.raises(EngineError, match="echo"):
        echo_scores(data, 3, "echo")


async def test_who_is_not_there_is_unavailable() -> None:
    engine = EchoEngine("http://127.0.0.1:9")
    assert await engine.score([5]) == []
    with pytest.raises(EngineUnavailable):
        await engine.score([5, 6])
    await engine.close()
