"""Reading one sampled turn of a token-level engine. Pure, one reader per request.

Invariants (tests/engines/test_completions_wire.py):
- a turn's ids and logprobs line up, chunk by chunk and with the server's usage, or EngineError names the request;
- a turn has an end: the last chunk, and only the last, carries a finish reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, cast

import msgspec

from whippletree.engines.wire import MISSING_LOGPROB, OVERFLOW_STEP, ErrorBody, Piece, Usage, overflows
from whippletree.errors import ContextOverflow, EngineError, EngineUnavailable
from whippletree.types import TokenChunk

EngineFinish = Literal["stop", "length", "abort"]


class TurnReader:
    """Checks the pieces of one sampled turn and makes chunks of them; pure, one per request.

    The chunk with the finish reason is held back until `end`, because usage and version spans may follow it.
    """

    def __init__(self, name: str, request_id: str, policy_version: int) -> None:
        self._name = name
        self._request_id = request_id
        self.policy_version = policy_version
        self._sampled = 0
        self._last: TokenChunk | None = None
        self._usage: Usage | None = None

    @property
    def finished(self) -> bool:
        """True once the finish reason has come."""
        return self._last is not None

    def feed(self, piece: Piece) -> TokenChunk | None:
        """The chunk that this piece makes, or None. Raises EngineError."""
        if piece.error is not None:
            raise self._failed(piece.error)
        self._usage = piece.usage or self._usage
        if piece.policy_version is not None:
            self.policy_version = piece.policy_version
        token_ids = piece.token_ids or []
        logprobs = self._aligned(piece, token_ids)
        if self._last is not None:
            if token_ids:
                raise EngineError(f"{self._where}: tokens came after the finish reason", "check the server's version")
            return None
        self._sampled += len(token_ids)
        if piece.finish_reason is None:
            return TokenChunk(token_ids=token_ids, logprobs=logprobs, policy_version=self.policy_version) if token_ids else None
        if piece.finish_reason not in ("stop", "length", "abort"):
            raise EngineError(f"{self._where}: unknown finish reason {piece.finish_reason!r}", "check the server's version")
        self._last = TokenChunk(
            token_ids=token_ids,
            logprobs=logprobs,
            policy_version=self.policy_version,
            finish_reason=cast(EngineFinish, piece.finish_reason),
            versions=piece.versions,
            experts=piece.experts,
        )
        return None

    def feed_all(self, pieces: Iterable[Piece]) -> list[TokenChunk]:
        """The chunks of several pieces, neighbours of one policy version joined. Raises EngineError."""
        chunks: list[TokenChunk] = []
        for piece in pieces:
            chunk = self.feed(piece)
            if chunk is None:
                continue
            if chunks and chunks[-1].policy_version == chunk.policy_version:
                chunks[-1].token_ids.extend(chunk.token_ids)
                chunks[-1].logprobs.extend(chunk.logprobs)
            else:
                chunks.append(chunk)
        return chunks

    def end(self) -> TokenChunk:
        """The last chunk. Raises EngineUnavailable if the turn has no end, EngineError if it does not add up."""
        if self._last is None:
            raise EngineUnavailable(f"{self._where}: the stream ended after {self._sampled} tokens without a finish", "retry")
        usage = self._usage
        if usage is not None and usage.completion_tokens != self._sampled and self._last.finish_reason != "abort":
            raise EngineError(
                f"{self._where}: usage says {usage.completion_tokens} sampled tokens, {self._sampled} ids came",
                "check that the server returns every token id (return_token_ids)",
            )
        return msgspec.structs.replace(self._last, cached_tokens=usage.cached_tokens if usage else 0)

    def aborted(self) -> TokenChunk:
        """The last chunk of a request that was ended from outside."""
        return self._last or TokenChunk(token_ids=[], logprobs=[], policy_version=self.policy_version, finish_reason="abort")

    def _failed(self, error: ErrorBody) -> EngineError:
        text = f"{self._where}: {error.message or error.type or 'the engine failed'}"
        if overflows(f"{error.message} {error.code}"):
            return ContextOverflow(text, OVERFLOW_STEP)
        return EngineError(text, "read the engine's log")

    @property
    def _where(self) -> str:
        return f"{self._name}, request {self._request_id}"

    def _aligned(self, piece: Piece, token_ids: list[int]) -> list[float]:
        logprobs = piece.logprobs or []
        if len(logprobs) != len(token_ids) or (piece.text and piece.token_ids is None):
            raise EngineError(
                f"{self._where}: {len(token_ids)} token ids came with {len(logprobs)} logprobs",
                "the server must return token ids and logprobs; `whippletree check` grades it",
            )
        checked = [value for value in logprobs if value is not None and MISSING_LOGPROB < value < math.inf]
        if len(checked) < len(logprobs):
            place = next(n for n, value in enumerate(logprobs) if value is None or not MISSING_LOGPROB < value < math.inf)
            raise EngineError(
                f"{self._where}: logprob {logprobs[place]} at sampled token {self._sampled + place}",
                "the model gave no finite logit there; check its weights",
            )
        return checked
