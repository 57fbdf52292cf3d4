"""The wire of token-level engines: typed requests and replies, and what an error means. No I/O.

Invariants (tests/engines/test_completions_wire.py):
- neighbouring tokens of one read are joined only where each event lines up by itself;
- a refusal is typed: ContextOverflow where the prompt does not fit, EngineUnavailable where a retry may help, else EngineError.
"""

from __future__ import annotations

import math

import msgspec

from whippletree.engines.experts import npy_experts
from whippletree.errors import ContextOverflow, EngineError, EngineUnavailable
from whippletree.types import RoutedExperts, Struct, VersionSpan

MISSING_LOGPROB = -9990.0  # servers write -9999.0 where a logprob is NaN or absent
RETRYABLE_STATUS = frozenset({408, 425, 429})
OVERFLOW_WORDS = (
    "maximum context length",
    "max_model_len",
    "longer than the maximum model length",
    "longer than the model's context length",
    "context_length_exceeded",
    "prompt is too long",
)
QUOTED_BYTES = 4096
OVERFLOW_STEP = "shorten the prompt or raise the engine's context length"


class StreamOptions(Struct):
    """Ask for the usage at the end of a stream.

    Example: StreamOptions(include_usage=True)
    """

    include_usage: bool


class CompletionRequest(Struct):
    """Body of POST /v1/completions with a token-id prompt. Every sampling knob that a model directory could preset is sent.

    Example: CompletionRequest(model="policy", prompt=ids_json([1, 2]), max_tokens=8, temperature=1.0, top_p=1.0, top_k=0,
                               logprobs=0, stream=True)
    """

    model: str
    prompt: msgspec.Raw
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
    """The answer, or a piece of it. `policy_version` is ours: the embedded engine sends it, others do not. `routed_experts`: at
    its end, of a mixture of experts, as vLLM writes them.

    Example: CompletionChoice(text="", token_ids=[5], logprobs=SampledLogprobs(token_logprobs=[-0.1]))
    """

    text: str = ""
    token_ids: list[int] | None = None
    logprobs: SampledLogprobs | None = None
    finish_reason: str | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    policy_version: int | None = None
    routed_experts: str | None = None


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
    experts: RoutedExperts | None = None


_REPLY = msgspec.json.Decoder(CompletionReply)
_REPLIES = msgspec.json.Decoder(list[CompletionReply])
_REFUSAL = msgspec.json.Decoder(Refusal)


class Joiner:
    """Joins neighbouring tokens of one read, so that what follows has few pieces to look at instead of hundreds."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._version: int | None = None
        self._joined = False

    def token(self, token_ids: list[int] | None, logprobs: list[float | None], version: int | None) -> bool:
        """Take one event that has nothing but tokens. False where it does not line up and is to be looked at by itself."""
        if not token_ids or len(token_ids) != len(logprobs):
            return False
        last = self.pieces[-1] if self._joined and version == self._version else None
        if last is None or last.token_ids is None or last.logprobs is None:
            self.pieces.append(Piece(token_ids=token_ids, logprobs=logprobs, policy_version=version))
            self._version, self._joined = version, True
        else:
            last.token_ids.extend(token_ids)
            last.logprobs.extend(logprobs)
        return True

    def other(self, piece: Piece) -> None:
        """Take any other event."""
        self.pieces.append(piece)
        self._joined = False


def array(events: list[bytes]) -> bytes:
    """Several JSON texts as one array: one call of the decoder."""
    return b"[" + b",".join(events) + b"]"


def completion_pieces(events: list[bytes]) -> list[Piece]:
    """Read the events of one network read (or a whole reply) of /v1/completions. Raises msgspec.DecodeError."""
    replies = _REPLIES.decode(array(events))
    joiner = Joiner()
    for reply in replies:
        choice = reply.choices[0] if reply.choices else None
        columns = None if choice is None or choice.logprobs is None else choice.logprobs.token_logprobs
        if (
            choice is None
            or columns is None
            or choice.finish_reason is not None
            or reply.usage is not None
            or reply.error is not None
            or not joiner.token(choice.token_ids, columns, choice.policy_version)
        ):
            joiner.other(_piece(reply))
    return joiner.pieces


def completion_piece(data: bytes) -> Piece:
    """Read one event (or the whole reply) of /v1/completions. Raises msgspec.DecodeError."""
    return _piece(_REPLY.decode(data))


def _piece(reply: CompletionReply) -> Piece:
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
        experts=None if choice.routed_experts is None else npy_experts(choice.routed_experts, "completions"),
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


def overflows(message: str) -> bool:
    """Whether a server's message says that the prompt does not fit."""
    return any(words in message for words in OVERFLOW_WORDS)


def refusal(status: int, body: bytes, name: str, retry_after: float = 0.0) -> EngineError:
    """The error that an HTTP error status means; `retry_after` is in seconds, where the server asked for it."""
    message = _message(body)
    text = f"{name} answered {status}: {message[:500]}"
    if status in (400, 413, 422) and overflows(f"{message} {body[:QUOTED_BYTES]!r}"):
        return ContextOverflow(text, OVERFLOW_STEP)
    if status >= 500 or status in RETRYABLE_STATUS:
        return EngineUnavailable(text, "retry; if it persists, read the engine's log", retry_after=retry_after)
    return EngineError(text, "the request is not one that this server serves; check model name, key and server version")


def _message(body: bytes) -> str:
    try:
        decoded = _REFUSAL.decode(body)
    except msgspec.DecodeError:
        return body.decode("utf-8", "replace")
    if isinstance(decoded.error, ErrorBody):
        return decoded.error.message
    return decoded.error or bytes(decoded.detail).decode("utf-8", "replace") or body.decode("utf-8", "replace")
