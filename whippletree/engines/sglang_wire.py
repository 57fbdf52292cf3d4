"""The wire of SGLang's native routes. No I/O.

A stream's events either repeat the whole turn so far (the server's default) or carry only what is new
(--incremental-streaming-output); some versions repeat the logprobs but not the ids. `completion_tokens` tells them apart:
a list as long as that count is the whole, a list that is exactly what is missing to that count is new, all else is an error.

Invariants (tests/engines/test_sglang_wire.py):
- the pieces of a turn are the same whether events are cumulative, incremental or merged;
- ids and logprobs come from the same entries, and ids that are told twice must agree, or EngineError;
- a weight label is a policy version or an error, never a guess.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec
import numpy as np

from whippletree.engines.experts import routed_experts
from whippletree.engines.vllm_wire import policy_version
from whippletree.engines.wire import ErrorBody, Piece, TokenDetails, Usage
from whippletree.errors import EngineError
from whippletree.types import RoutedExperts, Struct, VersionSpan

NAME = "sglang"

# --- requests ---


class SglangSampling(Struct):
    """The part of SGLang's sampling parameters that we set. With `ignore_eos` the server ignores stop ids too.

    Example: SglangSampling(max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, repetition_penalty=1.0, ...)
    """

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    ignore_eos: bool
    no_stop_trim: bool
    skip_special_tokens: bool
    stop_token_ids: list[int] = []
    sampling_seed: int | None = None
    json_schema: str | None = None


class SglangGenerate(Struct):
    """Body of POST /generate. `logprob_start_len` -1 gives logprobs of the answer only, 0 of the prompt too.

    Example: SglangGenerate(rid="r1", input_ids=[1, 2], sampling_params=SglangSampling(...), stream=True, return_logprob=True)
    """

    rid: str
    input_ids: list[int]
    sampling_params: SglangSampling
    stream: bool
    return_logprob: bool
    logprob_start_len: int
    return_routed_experts: bool = False


class AbortRequest(Struct):
    """Body of POST /abort_request. The server ends every request whose id begins with this.

    Example: AbortRequest(rid="r1~")
    """

    rid: str


class PauseRequest(Struct):
    """Body of POST /pause_generation. "retract": running requests wait, and their cache is computed again afterwards.

    Example: PauseRequest(mode="retract")
    """

    mode: str


class Empty(Struct):
    """Body or reply of routes that need no more.

    Example: Empty()
    """


class LoadRequest(Struct):
    """Body of POST /update_weights_from_disk.

    Example: LoadRequest(model_path="/dev/shm/weights", weight_version="7", flush_cache=True, abort_all_requests=False)
    """

    model_path: str
    weight_version: str
    flush_cache: bool
    abort_all_requests: bool


class LoadReply(Struct):
    """Reply of /update_weights_from_disk.

    Example: LoadReply(success=True, message="Succeeded to update model weights.")
    """

    success: bool = False
    message: str = ""


class ModelInfo(Struct):
    """Reply of /get_model_info (newer: /model_info).

    Example: ModelInfo(model_path="/models/policy", weight_version="7")
    """

    model_path: str = ""
    weight_version: str | None = None


class Load(Struct):
    """One data-parallel rank in the reply of /get_load.

    Example: Load(num_reqs=3, num_waiting_reqs=1)
    """

    num_reqs: int = 0
    num_waiting_reqs: int = 0


# --- replies ---


class FinishReason(Struct):
    """Why a turn ended. `matched` is the stop id.

    Example: FinishReason(type="stop", matched=2)
    """

    type: str
    matched: Any = None
    message: str = ""
    status_code: int | None = None


class VersionLabel(Struct):
    """Sampled tokens [start, end) came from the weights with this label.

    Example: VersionLabel(version="7", start=0, end=12)
    """

    version: str
    start: int
    end: int


Entry = tuple[float | None, int, Any]  # logprob, id, text


class MetaInfo(Struct):
    """What is said of a request beside its output.

    Example: MetaInfo(prompt_tokens=20, completion_tokens=1, output_token_logprobs=[(-0.1, 5, None)], weight_version="7")
    """

    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    weight_version: str | None = None
    weight_versions: list[VersionLabel] | None = None
    input_token_logprobs: list[Entry] | None = None
    output_token_logprobs: list[Entry] | None = None
    routed_experts: str | None = None


class GenerateReply(Struct):
    """A whole reply of /generate, or one event of its stream.

    Example: GenerateReply(text="a", output_ids=[5], meta_info=MetaInfo(...))
    """

    text: str | None = None
    output_ids: list[int] | None = None
    meta_info: MetaInfo = MetaInfo()
    error: ErrorBody | None = None


_REPLY = msgspec.json.Decoder(GenerateReply)


class SglangTurn:
    """Reads the events of one stream, or a whole reply, in order. `experts_per_token` 0: routed experts are not read."""

    def __init__(self, experts_per_token: int = 0) -> None:
        self._experts_per_token = experts_per_token
        self._seen = 0

    def __call__(self, data: bytes) -> Piece:
        """What this event adds. Raises msgspec.DecodeError, or EngineError for what does not add up."""
        reply = _REPLY.decode(data)
        meta = reply.meta_info
        if reply.error is not None:
            return Piece(error=reply.error)
        finish = meta.finish_reason
        if finish is not None and finish.type == "abort" and (finish.status_code or 0) >= 400:
            return Piece(error=ErrorBody(message=finish.message or "the server ended the request", code=finish.status_code))
        count = meta.completion_tokens - self._seen
        ids, logprobs = self._new(reply, count)
        self._seen = meta.completion_tokens
        return Piece(
            text=(reply.text or "") if ids is None else "",  # only the probe looks at it
            token_ids=ids,
            logprobs=logprobs,
            finish_reason=None if finish is None else finish.type,
            policy_version=None if meta.weight_version is None else policy_version(meta.weight_version, NAME),
            versions=_spans(meta) if finish is not None else (),
            usage=Usage(
                prompt_tokens=meta.prompt_tokens,
                completion_tokens=meta.completion_tokens,
                prompt_tokens_details=TokenDetails(cached_tokens=meta.cached_tokens),
            ),
            experts=self._experts(meta) if finish is not None else None,
        )

    def _new(self, reply: GenerateReply, count: int) -> tuple[list[int] | None, list[float | None] | None]:
        """Ids and logprobs of the `count` tokens that were not there before; None for a column that did not come."""
        entries = reply.meta_info.output_token_logprobs
        ids = None if reply.output_ids is None else self._tail(reply.output_ids, count)
        if entries is None:
            return ids, None
        entries = self._tail(entries, count)
        told = [entry[1] for entry in entries]
        if ids is not None and ids != told:
            raise EngineError(f"{NAME}: logprobs came for other tokens than were sampled", "check SGLang's version")
        return told, [entry[0] for entry in entries]

    def _tail(self, column: list[Any], count: int) -> list[Any]:
        if len(column) == self._seen + count:
            return column[self._seen :]
        if len(column) == count:
            return column
        raise EngineError(
            f"{NAME}: {len(column)} entries came where {self._seen + count} tokens are sampled, {count} of them new",
            "check SGLang's version: ids and logprobs must line up",
        )

    def _experts(self, meta: MetaInfo) -> RoutedExperts | None:
        """Base64 of little-endian int32, shape (prompt + sampled - 1, layers, experts per token)."""
        if meta.routed_experts is None or not self._experts_per_token:
            return None
        tokens = meta.prompt_tokens + meta.completion_tokens - 1
        try:
            flat = np.frombuffer(base64.b64decode(meta.routed_experts, validate=True), dtype="<i4")
            experts = flat.reshape(tokens, -1, self._experts_per_token)
        except (binascii.Error, ValueError) as error:
            raise EngineError(
                f"{NAME}: routed experts do not have the shape ({tokens}, layers, {self._experts_per_token}): {error}",
                "set engine.experts_per_token to the model's num_experts_per_tok",
            ) from error
        return routed_experts(experts, NAME)


def _spans(meta: MetaInfo) -> tuple[VersionSpan, ...]:
    return tuple(
        VersionSpan(start=span.start, policy_version=policy_version(span.version, NAME)) for span in meta.weight_versions or ()
    )


def input_scores(data: bytes, token_ids: list[int]) -> list[float]:
    """Logprobs of token_ids[1:] from a whole reply with logprob_start_len 0. Raises EngineError, msgspec.DecodeError."""
    reply = _REPLY.decode(data)
    if reply.error is not None:
        raise EngineError(f"{NAME}: scoring failed: {reply.error.message}", "read the engine's log")
    entries = reply.meta_info.input_token_logprobs or []
    if [entry[1] for entry in entries] != token_ids:
        raise EngineError(
            f"{NAME}: {len(token_ids)} prompt logprobs expected, {len(entries)} came", "check SGLang's version and its log"
        )
    scores = [entry[0] for entry in entries[1:]]
    if None in scores:
        raise EngineError(f"{NAME}: no logprob for prompt token {scores.index(None) + 1}", "read the engine's log")
    return [score for score in scores if score is not None]
