"""The wire of vLLM's token-in, token-out route and control routes. No I/O.

Invariants (tests/engines/test_vllm_client.py, on recorded replies):
- logprobs are those of the sampled ids, in order, or EngineError;
- a weight label is a policy version or an error, never a guess.
"""

from __future__ import annotations

from typing import Any

import msgspec

from whippletree.engines.experts import npy_experts
from whippletree.engines.wire import ErrorBody, Joiner, Piece, StreamOptions, Usage, array
from whippletree.errors import EngineError
from whippletree.types import Struct, VersionSpan

UNLABELLED = "default"  # vLLM's label of the weights it started with: policy version 0
LOADING = "loading"
REQUEST_PREFIX = "generate-tokens-"


class VllmStructure(Struct):
    """What the text must follow: a JSON Schema.

    Example: VllmStructure(json={"type": "object"})
    """

    json: dict[str, Any]


class VllmSampling(Struct):
    """The part of vLLM's SamplingParams that we set; all of it is sent, so that no preset of the model's applies.

    Example: VllmSampling(max_tokens=8, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, logprobs=0, ...)
    """

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    logprobs: int
    ignore_eos: bool
    detokenize: bool
    stop_token_ids: list[int]
    seed: int | None = None
    structured_outputs: VllmStructure | None = None


class VllmGenerate(Struct):
    """Body of POST /inference/v1/generate.

    Example: VllmGenerate(request_id="r1", model="policy", token_ids=[1, 2], stream=True, sampling_params=VllmSampling(...),
                          stream_options=StreamOptions(include_usage=True))
    """

    request_id: str
    model: str
    token_ids: msgspec.Raw
    stream: bool
    sampling_params: VllmSampling
    stream_options: StreamOptions


class VllmSpan(Struct):
    """Sampled tokens [start, end) came from the weights labelled `version`.

    Example: VllmSpan(version="7", start=0, end=12)
    """

    version: str
    start: int
    end: int


class VllmLogprob(Struct):
    """One sampled token.

    Example: VllmLogprob(token_id=5, logprob=-0.1)
    """

    token_id: int
    logprob: float | None = None


class VllmLogprobs(Struct):
    """Sampled tokens of one event.

    Example: VllmLogprobs(content=[VllmLogprob(token_id=5, logprob=-0.1)])
    """

    content: list[VllmLogprob] | None = None


class VllmChoice(Struct):
    """A piece of the answer; the versions come with the finish reason.

    Example: VllmChoice(token_ids=[5], logprobs=VllmLogprobs(content=[VllmLogprob(token_id=5, logprob=-0.1)]))
    """

    token_ids: list[int] | None = None
    logprobs: VllmLogprobs | None = None
    finish_reason: str | None = None
    weight_versions: list[VllmSpan] | None = None
    routed_experts: str | None = None


class VllmEvent(Struct):
    """One event of the stream.

    Example: VllmEvent(choices=[VllmChoice(token_ids=[5], finish_reason="length")])
    """

    choices: list[VllmChoice] = []
    usage: Usage | None = None
    error: ErrorBody | None = None


class WeightInfo(Struct):
    """Reply of /weight_info.

    Example: WeightInfo(weight_version="7")
    """

    weight_version: str


class Paused(Struct):
    """Reply of /is_paused.

    Example: Paused(is_paused=False)
    """

    is_paused: bool


class Rpc(Struct):
    """Body of /collective_rpc.

    Example: Rpc(method="whippletree_load", args=["/dev/shm/weights"])
    """

    method: str
    args: list[str]
    timeout: float | None = None


class Loaded(Struct):
    """What a worker says after a load. `refused` says why it changed nothing ("" when it loaded).

    Example: Loaded(checksum=123, tensors=24, repacked=1)
    """

    checksum: int = 0
    tensors: int = 0
    repacked: int = 0
    refused: str = ""


class RpcReply(Struct):
    """Reply of /collective_rpc: one entry for each worker.

    Example: RpcReply(results=[Loaded(checksum=123, tensors=24, repacked=1)])
    """

    results: list[Loaded]


class NewVersion(Struct):
    """Body of /update_weight_version.

    Example: NewVersion(new_version="7")
    """

    new_version: str


class RequestIds(Struct):
    """Body of /abort_requests.

    Example: RequestIds(request_ids=["generate-tokens-r1"])
    """

    request_ids: list[str]


class Success(Struct):
    """Reply of routes that say whether they did it.

    Example: Success(success=True)
    """

    success: bool = True


_EVENT = msgspec.json.Decoder(VllmEvent)
_EVENTS = msgspec.json.Decoder(list[VllmEvent])


def vllm_pieces(events: list[bytes]) -> list[Piece]:
    """Read the events of one network read (or a whole reply) of /inference/v1/generate. Raises as `vllm_piece`."""
    joiner = Joiner()
    for event in _EVENTS.decode(array(events)):
        choice = event.choices[0] if event.choices else None
        entries = choice.logprobs.content if choice is not None and choice.logprobs else None
        if (
            choice is None
            or choice.finish_reason is not None
            or event.usage is not None
            or event.error is not None
            or not entries
            or choice.token_ids != [entry.token_id for entry in entries]
            or not joiner.token(choice.token_ids, [entry.logprob for entry in entries], None)
        ):
            joiner.other(_piece(event))
    return joiner.pieces


def vllm_piece(data: bytes) -> Piece:
    """Read one event (or the whole reply) of /inference/v1/generate. Raises msgspec.DecodeError, or EngineError for a label
    that is no policy version."""
    return _piece(_EVENT.decode(data))


def _piece(event: VllmEvent) -> Piece:
    if not event.choices:
        return Piece(usage=event.usage, error=event.error)
    choice = event.choices[0]
    entries = choice.logprobs.content if choice.logprobs else None
    ids = choice.token_ids
    if entries is not None and ids is not None and [entry.token_id for entry in entries] != list(ids):
        raise EngineError("vllm: logprobs came for other tokens than were sampled", "check vLLM's version")
    return Piece(
        token_ids=ids,
        logprobs=None if entries is None else [entry.logprob for entry in entries],
        finish_reason=choice.finish_reason,
        versions=tuple(
            VersionSpan(start=span.start, policy_version=policy_version(span.version)) for span in choice.weight_versions or ()
        ),
        usage=event.usage,
        error=event.error,
        experts=None if choice.routed_experts is None else npy_experts(choice.routed_experts, "vllm"),
    )


def policy_version(label: str, name: str = "vllm") -> int:
    """The policy version that the label of sampled tokens stands for. Raises EngineError."""
    if label == UNLABELLED:
        return 0
    if label.isdecimal():
        return int(label)
    raise EngineError(
        f"{name} sampled tokens under weights labelled {label!r}, which is no policy version",
        "a weight update did not finish, or someone else set the label; restart the engine from the last checkpoint",
    )


def gauge(metrics: str, name: str) -> int:
    """Sum of one gauge over its label sets in Prometheus' text form; 0 where it is absent."""
    lines = (line for line in metrics.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return round(sum(float(line.rsplit(" ", 1)[1]) for line in lines))
