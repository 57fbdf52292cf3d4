"""What goes to an engine and comes from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, overload

import msgspec

from whippletree.types.base import Int32, Struct
from whippletree.types.messages import ChatRequest


class Sampling(Struct):
    """The sampling that a run fixes for its rollouts (n is always 1). `top_k` 0 and `top_p` 1 mean the whole distribution.

    Example: Sampling(temperature=1.0, max_tokens=40)
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 512
    seed: int | None = None


class TokenIds(Sequence[int]):
    """Token ids as an array, int32 [n], beside their JSON text: a long prompt is written once, not anew for each request."""

    __slots__ = ("array", "json")

    def __init__(self, array: Int32, json: bytes) -> None:
        self.array = array
        self.json = json

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[int]:
        return iter(self.array.tolist())

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        found = self.array[place]
        return found.tolist() if isinstance(place, slice) else int(found)


def ids_json(ids: Sequence[int]) -> msgspec.Raw:
    """Token ids as a JSON array, ready to stand in a request's body."""
    return msgspec.Raw(ids.json if isinstance(ids, TokenIds) else msgspec.json.encode(list(ids)))


class GenerateRequest(Struct):
    """One token-level request to an engine. `stop_token_ids` end the turn and are part of the sampled ids.

    `schema`: JSON Schema that the text must follow; sent only to engines whose report says `structured`.

    Example: GenerateRequest(request_id="r1-1-0", prompt_ids=[1, 2], sampling=Sampling(), stop_token_ids=[2])
    """

    request_id: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    stop_token_ids: list[int] = []
    schema: dict[str, Any] | None = None


class VersionSpan(Struct):
    """Sampled tokens from index `start` on (until the next span) came from `policy_version`.

    Example: VersionSpan(start=0, policy_version=7)
    """

    start: int
    policy_version: int


class RoutedExperts(Struct):
    """Which experts a mixture-of-experts model used: int16, little-endian, shape (tokens, layers, experts per token), for the
    tokens from place `start` of prompt + sampled ids on.

    Example: RoutedExperts(start=0, shape=(120, 24, 8), data=b"...")
    """

    start: int
    shape: tuple[int, int, int]
    data: bytes


class TokenChunk(Struct):
    """A piece of an engine's answer, in order. len(token_ids) == len(logprobs). The last chunk has a finish reason.

    `logprobs`: natural log, float32 precision, of each sampled token under softmax(logits / temperature) over the full
    vocabulary (before top-k/top-p).
    `versions`: only on the last chunk, and only from engines that tell versions at the end of a turn: spans over the whole
    turn, which then replace the chunks' `policy_version`.
    `experts`: only on the last chunk, from engines that tell it.

    Example: TokenChunk(token_ids=[5], logprobs=[-0.1], policy_version=3, finish_reason="stop", cached_tokens=12)
    """

    token_ids: list[int]
    logprobs: list[float]
    policy_version: int
    finish_reason: Literal["stop", "length", "abort"] | None = None
    cached_tokens: int = 0
    versions: tuple[VersionSpan, ...] = ()
    experts: RoutedExperts | None = None


class ChatTurn(Struct):
    """One request to an engine's own chat endpoint: the engine renders and parses, nothing is reused.

    Example: ChatTurn(request_id="c-1-0", request=ChatRequest(model="policy", messages=(...)), sampling=Sampling())
    """

    request_id: str
    request: ChatRequest
    sampling: Sampling


class EngineStatus(Struct):
    """What an engine says of itself. `policy_version` is that of the weights it serves now.

    Example: EngineStatus(name="embedded", model="tiny", policy_version=3, context_length=1024)
    """

    name: str
    model: str
    policy_version: int
    context_length: int
    paused: bool = False
    running: int = 0
    waiting: int = 0


Grade = Literal["tokens", "logprobs", "text"]


class EngineReport(Struct):
    """Result of a probe at registration: what the engine can be used for. Only grade "tokens" can be trained on.

    `context_length` in tokens (0: unknown). `tool_calls`: its own chat endpoint reads tool calls. `structured`: it can follow a
    JSON Schema. `experts`: it tells routed experts.

    Example: EngineReport(grade="tokens", logprobs="processed", detail="ids and logprobs of 8 tokens agree with their scores")
    """

    grade: Literal["tokens", "logprobs", "text", "none"]
    logprobs: Literal["processed", "raw", "none"]
    detail: str = ""
    context_length: int = 0
    tool_calls: bool = False
    structured: bool = False
    experts: bool = False


class WeightUpdate(Struct):
    """New weights for an engine: a directory in Hugging Face layout (config.json, *.safetensors), under a new policy version.

    Example: WeightUpdate(directory="/dev/shm/run/weights", policy_version=4)
    """

    directory: str
    policy_version: int
