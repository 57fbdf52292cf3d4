"""Client of an OpenAI-compatible /v1/completions server that scores a prompt by repeating it: `echo` with `logprobs`.

It is for servers that do not know `prompt_logprobs`.

Invariants (tests/engines/test_echo.py): there is one finite score for each id after the first, or an EngineError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from whippletree.engines.completions import CompletionsEngine
from whippletree.engines.wire import MISSING_LOGPROB, CompletionReply
from whippletree.errors import EngineError
from whippletree.types import Struct, ids_json


class EchoRequest(Struct, omit_defaults=False):
    """Body of POST /v1/completions that asks for the prompt's own logprobs.

    Example: EchoRequest(model="teacher", prompt=ids_json([1, 2]))
    """

    model: str
    prompt: msgspec.Raw
    max_tokens: int = 1
    echo: bool = True
    logprobs: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    stream: bool = False


class EchoEngine(CompletionsEngine):
    """Scores by `echo`. Everything else is CompletionsEngine's, where the server can do it."""

    name = "echo"

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs of token_ids[1:] at temperature 1 (length len - 1). The ids must leave room for one sampled token."""
        ids = list(token_ids)
        if len(ids) < 2:
            return []
        body = msgspec.json.encode(EchoRequest(model=self.model, prompt=ids_json(ids)))
        data = await self.http.request("POST", self.route, body, seconds=self.http.timeouts.read)
        try:
            return echo_scores(data, len(ids), self.name)
        except msgspec.DecodeError as error:
            raise self.http.garbled(error, data) from error


def echo_scores(data: bytes, count: int, name: str) -> list[float]:
    """Logprobs of the prompt's tokens after the first from a whole reply with echo, of a prompt of `count` tokens.

    Raises EngineError, and msgspec.DecodeError.
    """
    reply = msgspec.json.decode(data, type=CompletionReply)
    if reply.error is not None:
        raise EngineError(f"{name}: scoring failed: {reply.error.message}", "read the server's log")
    columns = reply.choices[0].logprobs if reply.choices else None
    found = [] if columns is None else columns.token_logprobs
    if not count <= len(found) <= count + 1:  # the prompt's, and that of one sampled token unless it ended the text
        raise EngineError(
            f"{name}: logprobs of {count} echoed tokens expected, {len(found)} came",
            "use a server that takes token ids as prompt, with echo and logprobs",
        )
    scores: list[float] = []
    for position, value in enumerate(found[1:count], start=1):
        if value is None or not math.isfinite(value) or value <= MISSING_LOGPROB:
            raise EngineError(f"{name}: no logprob for the prompt's token at position {position}", "read the server's log")
        scores.append(value)
    return scores
