"""The wire of token-level engines: typed replies, server-sent events, and the reading of one sampled turn. No I/O.

Invariants (tests/engines/test_completions_wire.py):
- the events of a byte stream do not depend on how the stream was split;
- a turn's ids and logprobs line up, chunk by chunk and with the server's usage, or EngineError names the request;
- a turn has an end: the last chunk, and only the last, carries a finish reason;
- a refusal is typed: ContextOverflow where the prompt does not fit, EngineUnavailable where a retry may help, else EngineError.
"""

from __future__ import annotations

import math
from typing import Literal, cast

import msgspec

from whippletree.errors import ContextOverflow, EngineError, EngineUnavailable
from whippletree.types import Struct, TokenChunk, VersionSpan

EVENT_LIMIT_BYTES = 64 * 1024 * 1024
MISSING_LOGPROB = -9990.0  # servers write -9999.0 where a logprob is NaN or absent
RETRYABLE_STATUS = frozenset({408, 425, 429})
OVERFLOW_WORDS = ("maximum context length", "max_model_len", "longer than the maximum model length")
OVERFLOW_STEP = "shorten the prompt or raise the engine's context length"

EngineFinish = Literal["stop", "length", "abort"]


class StreamOptions(Struct):
    """Ask for the usage at the end of a stream.

    Example: StreamOptions(include_usage=True)
    """

    include_usage: bool


class CompletionRequest(Struct):
    """Body of POST /v1/completions with a token-id prompt. Every sampling knob that a model directory could preset is sent.

    Example: CompletionRequest(model="policy", prompt=[1, 2], max_tokens=8, temperature=1.0, top_p=1.0, top_k=0, logprobs=0,
                               stream=True)
    """

    model: str
    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stream: bool
    logprobs: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    return_token_ids: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool | None = None
    stop_token_ids: list[int] = []
    seed: int | None = None
    prompt_logprobs: int | None = None
    request_id: str | None = None
    stream_options: StreamOptions | None = None


class TokenDetails(Struct):
    """Part of a usage record.

    Example: TokenDetails(cached_tokens=48)
    """

    cached_tokens: int | None = None


class Usage(Struct):
    """Token counts of one request.

    Example: Usage(prompt_tokens=20, completion_tokens=8)
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: TokenDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed again."""
        details = self.prompt_tokens_details
        return (details.cached_tokens or 0) if details else 0


class SampledLogprobs(Struct):
    """Logprobs of the sampled tokens, one each.

    Example: SampledLogprobs(token_logprobs=[-0.1, -2.5])
    """

    token_logprobs: list[float | None] = []


class PromptLogprob(Struct):
    """Logprob of one candidate at one prompt position.

    Example: PromptLogprob(logprob=-0.1)
    """

    logprob: float | None = None


class CompletionChoice(Struct):
    """The answer, or a piece of it. `policy_version` is ours: the embedded engine sends it, others do not.

    Example: CompletionChoice(text="", token_ids=[5], logprobs=SampledLogprobs(token_logprobs=[-0.1]))
    """

    text: str = ""
    token_ids: list[int] | None = None
    logprobs: SampledLogprobs | None = None
    finish_reason: str | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    policy_version: int | None = None


class ErrorBody(Struct):
    """What a server says went wrong.

    Example: ErrorBody(message="This model's maximum context length is 256 tokens.", code=400)
    """

    message: str = ""
    type: str | None = None
    code: int | str | None = None


class CompletionReply(Struct):
    """A whole reply of /v1/completions, or one event of its stream.

    Example: CompletionReply(choices=[CompletionChoice(token_ids=[5], finish_reason="stop")])
    """

    choices: list[CompletionChoice] = []
    usage: Usage | None = None
    error: ErrorBody | None = None


class Refusal(Struct):
    """Body of an error status; servers use one of the two forms. `detail` is free-form.

    Example: Refusal(error=ErrorBody(message="unknown model"))
    """

    error: ErrorBody | str | None = None
    detail: msgspec.Raw = msgspec.Raw(b"")


class Piece(Struct):
    """One event of a sampled turn, whichever server it came from, before any check. None: the server did not send it.

    Example: Piece(token_ids=[5], logprobs=[-0.1])
    """

    text: str = ""
    token_ids: list[int] | None = None
    logprobs: list[float | None] | None = None
    finish_reason: str | None = None
    policy_version: int | None = None
    versions: tuple[VersionSpan, ...] = ()
    usage: Usage | None = None
    error: ErrorBody | None = None


_REPLY = msgspec.json.Decoder(CompletionReply)
_REFUSAL = msgspec.json.Decoder(Refusal)


def completion_piece(data: bytes) -> Piece:
    """Read one event (or the whole reply) of /v1/completions. Raises msgspec.DecodeError."""
    reply = _REPLY.decode(data)
    if not reply.choices:
        return Piece(usage=reply.usage, error=reply.error)
    choice = reply.choices[0]
    return Piece(
        text=choice.text,
        token_ids=choice.token_ids,
        logprobs=choice.logprobs.token_logprobs if choice.logprobs else None,
        finish_reason=choice.finish_reason,
        policy_version=choice.policy_version,
        usage=reply.usage,
        error=reply.error,
    )


def prompt_scores(data: bytes, token_ids: list[int], name: str) -> list[float]:
    """Logprobs of token_ids[1:] from a whole /v1/completions reply with prompt_logprobs. Raises EngineError."""
    reply = _REPLY.decode(data)
    if reply.error is not None:
        raise EngineError(f"{name}: scoring failed: {reply.error.message}", "read the engine's log")
    columns = reply.choices[0].prompt_logprobs if reply.choices else None
    if columns is None or len(columns) != len(token_ids):
        found = "none" if columns is None else str(len(columns))
        raise EngineError(
            f"{name}: {len(token_ids)} prompt logprobs expected, {found} came", "use a server with prompt_logprobs"
        )
    scores: list[float] = []
    for position, (token, column) in enumerate(zip(token_ids[1:], columns[1:], strict=True), start=1):
        entry = (column or {}).get(str(token))
        if entry is None or entry.logprob is None or not math.isfinite(entry.logprob) or entry.logprob <= MISSING_LOGPROB:
            raise EngineError(f"{name}: no logprob for prompt token {token} at position {position}", "read the engine's log")
        scores.append(entry.logprob)
    return scores


def refusal(status: int, body: bytes, name: str) -> EngineError:
    """The error that an HTTP error status means."""
    message = _message(body)
    text = f"{name} answered {status}: {message[:500]}"
    if status in (400, 413, 422) and any(words in message for words in OVERFLOW_WORDS):
        return ContextOverflow(text, OVERFLOW_STEP)
    if status >= 500 or status in RETRYABLE_STATUS:
        return EngineUnavailable(text, "retry; if it persists, read the engine's log")
    return EngineError(text, "the request is not one that this server serves; check model name, key and server version")


def _message(body: bytes) -> str:
    try:
        decoded = _REFUSAL.decode(body)
    except msgspec.DecodeError:
        return body.decode("utf-8", "replace")
    if isinstance(decoded.error, ErrorBody):
        return decoded.error.message
    return decoded.error or bytes(decoded.detail).decode("utf-8", "replace") or body.decode("utf-8", "replace")


class EventReader:
    """Splits a byte stream into the data of its server-sent events. Comments and other fields are skipped."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._searched = 0
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Data of the events that these further bytes complete, in order. Raises EngineError on an event without end."""
        self._pending += data
        events: list[bytes] = []
        start = 0
        while (end := self._pending.find(b"\n", max(start, self._searched))) >= 0:
            line = bytes(self._pending[start:end]).removesuffix(b"\r")
            start = self._searched = end + 1
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        del self._pending[:start]
        self._searched = len(self._pending)
        if self._searched + sum(map(len, self._data)) > EVENT_LIMIT_BYTES:
            raise EngineError(f"a stream event has no end after {EVENT_LIMIT_BYTES} bytes", "check that the URL is an engine's")
        return events


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
        )
        return None

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
        if any(words in error.message for words in OVERFLOW_WORDS):
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
        checked: list[float] = []
        for value in logprobs:
            if value is None or not math.isfinite(value) or value <= MISSING_LOGPROB:
                raise EngineError(
                    f"{self._where}: logprob {value} at sampled token {self._sampled + len(checked)}",
                    "the model gave no finite logit there; check its weights",
                )
            checked.append(value)
        return checked
