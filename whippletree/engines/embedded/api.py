"""The HTTP bodies of the embedded engine: vLLM's /v1/completions with token ids in and out, and the control routes.

Invariants (tests/engines/test_embedded_api.py):
- a parameter that would change what is sampled is honoured or refused, never ignored.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from whippletree.engines.embedded.sequence import Sequence
from whippletree.errors import RequestError
from whippletree.types import Sampling, Struct, VersionSpan


class StreamOptions(Struct):
    """Whether a stream ends with a usage event.

    Example: StreamOptions(include_usage=True)
    """

    include_usage: bool = False


class CompletionBody(Struct):
    """Body of POST /v1/completions. The fields from `n` on must have their neutral value.

    Example: CompletionBody(prompt=[1, 2], max_tokens=8, temperature=1.0, logprobs=0, return_token_ids=True)
    """

    prompt: list[int]
    model: str = ""
    max_tokens: int | None = 16
    temperature: float | None = 1.0
    top_p: float | None = 1.0
    top_k: int | None = 0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    request_id: str | None = None
    n: int | None = 1
    best_of: int | None = 1
    echo: bool | None = False
    stop: str | list[str] | None = None
    min_p: float | None = 0.0
    min_tokens: int | None = 0
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    repetition_penalty: float | None = 1.0
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1, None),
    "best_of": (1, None),
    "echo": (False, None),
    "stop": (None, [], ""),
    "min_p": (0.0, None),
    "min_tokens": (0, None),
    "presence_penalty": (0.0, None),
    "frequency_penalty": (0.0, None),
    "repetition_penalty": (1.0, None),
    "logit_bias": (None, {}),
    "bad_words": (None, []),
}


class Logprobs(Struct):
    """Logprobs of sampled tokens, one entry each.

    Example: Logprobs(tokens=["token_id:5"], token_logprobs=[-0.1], text_offset=[0])
    """

    tokens: list[str]
    token_logprobs: list[float]
    text_offset: list[int]
    top_logprobs: None = None


class PromptLogprob(Struct):
    """Logprob of a prompt token. The rank is not computed.

    Example: PromptLogprob(logprob=-0.1)
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# Replies write every field, nulls too, as vLLM does.


class Choice(msgspec.Struct, kw_only=True, frozen=True):
    """The answer or a piece of it. `policy_version` is that of its last token; `versions` spans a whole answer.
    `routed_experts` at its end, of a mixture of experts: base64 of NumPy's file format, shape (prompt + sampled - 1,
    layers, experts per token).

    Example: Choice(token_ids=[5], policy_version=3)
    """

    index: int = 0
    text: str = ""
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    policy_version: int
    versions: list[VersionSpan] = []
    routed_experts: str | None = None


class PromptTokensDetails(msgspec.Struct, kw_only=True, frozen=True):
    """How much of the prompt came from the cache.

    Example: PromptTokensDetails(cached_tokens=12)
    """

    cached_tokens: int


class Usage(msgspec.Struct, kw_only=True, frozen=True):
    """Token counts of one request.

    Example: Usage(prompt_tokens=20, completion_tokens=8, total_tokens=28, prompt_tokens_details=PromptTokensDetails(...))
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Completion(msgspec.Struct, kw_only=True, frozen=True):
    """A reply, or one event of a stream.

    Example: Completion(id="cmpl-1", created=1, model="policy", choices=[Choice(token_ids=[5], policy_version=3)])
    """

    id: str
    created: int
    model: str
    choices: list[Choice]
    object: str = "text_completion"
    usage: Usage | None = None


class ErrorInfo(msgspec.Struct, kw_only=True, frozen=True):
    """What went wrong.

    Example: ErrorInfo(message="...", type="BadRequestError", code=400)
    """

    message: str
    type: str
    code: int


class ErrorReply(msgspec.Struct, kw_only=True, frozen=True):
    """Body of every reply that is not a success.

    Example: ErrorReply(error=ErrorInfo(message="...", type="BadRequestError", code=400))
    """

    error: ErrorInfo


class Abort(Struct):
    """Body of POST /abort.

    Example: Abort(request_id="r1-1-0")
    """

    request_id: str


class ModelEntry(msgspec.Struct, kw_only=True, frozen=True):
    """One served model; lengths in tokens.

    Example: ModelEntry(id="policy", root="/models/tiny", max_model_len=1024, created=1)
    """

    id: str
    root: str
    max_model_len: int
    created: int
    object: str = "model"
    owned_by: str = "whippletree"


class ModelEntries(msgspec.Struct, kw_only=True, frozen=True):
    """Reply of GET /v1/models.

    Example: ModelEntries(data=[ModelEntry(...)])
    """

    data: list[ModelEntry]
    object: str = "list"


class Limits(Struct):
    """What a request is checked against. `eos_ids` end an answer unless it ignores them.

    Example: Limits(vocabulary=512, context=1024, eos_ids=frozenset({2}), seed=0)
    """

    vocabulary: int
    context: int
    eos_ids: frozenset[int]
    seed: int


def accept(body: CompletionBody, request_id: str, limits: Limits) -> Sequence:
    """Check a request and turn it into a sequence. Raises RequestError (status 400) for what cannot be served exactly."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(body, name)
        if value not in neutral:
            raise RequestError(f"{name} = {value!r} is not supported by the embedded engine", "leave it out")
    if (body.logprobs or 0) not in (0, 1) or (body.prompt_logprobs or 0) not in (0, 1):
        raise RequestError("logprobs and prompt_logprobs are given for the tokens themselves only", "ask for 0 or 1")
    if body.stream and body.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs are not streamed", "set stream to false")
    prompt = body.prompt
    if not prompt:
        raise RequestError("the prompt is empty", "give at least one token id")
    if min(prompt) < 0 or max(prompt) >= limits.vocabulary:
        raise RequestError(f"a prompt token id is outside 0..{limits.vocabulary - 1}", "use the model's own tokenizer")
    if len(prompt) >= limits.context:
        raise RequestError(
            f"This model's maximum context length is {limits.context} tokens, one of them sampled;"
            f" your prompt has {len(prompt)} tokens",
            "shorten the prompt or start the engine with a larger context",
        )
    seed = f"{limits.seed}:{request_id}" if body.seed is None else body.seed
    return Sequence(
        request_id=request_id,
        prompt_length=len(prompt),
        tokens=list(prompt),
        sampling=_sampling(body),
        stop_ids=frozenset(body.stop_token_ids or ()) | (frozenset() if body.ignore_eos else limits.eos_ids),
        uniforms=random.Random(seed),
        score_prompt=body.prompt_logprobs is not None,
        stream=body.stream,
    )


def _sampling(body: CompletionBody) -> Sampling:
    max_tokens = 16 if body.max_tokens is None else body.max_tokens
    temperature = 1.0 if body.temperature is None else body.temperature
    top_p = 1.0 if body.top_p is None else body.top_p
    top_k = max(body.top_k or 0, 0)
    if max_tokens < 1:
        raise RequestError(f"max_tokens = {max_tokens} asks for nothing", "ask for at least 1")
    if not 0.0 <= temperature < float("inf"):
        raise RequestError(f"temperature = {temperature} is not a temperature", "use 0 (greedy) or more")
    if 0.0 < temperature < 1e-3:
        raise RequestError(
            f"temperature = {temperature} is too close to 0 for exact logprobs", "use 0 (greedy) or at least 0.001"
        )
    if not 0.0 < top_p <= 1.0:
        raise RequestError(f"top_p = {top_p} is not in (0, 1]", "use 1 for the whole distribution")
    return Sampling(temperature=temperature, top_p=top_p, top_k=top_k, max_tokens=max_tokens, seed=body.seed)
