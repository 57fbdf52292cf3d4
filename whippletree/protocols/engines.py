"""Inference engines, and the choice among their replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol, runtime_checkable

from whippletree.protocols.rendering import StreamDelta
from whippletree.types import ChatTurn, EngineReport, EngineStatus, GenerateRequest, Struct, TokenChunk, WeightUpdate


@runtime_checkable
class Engine(Protocol):
    """A token-level inference engine: ids in, ids and logprobs out.

    Raises EngineUnavailable where a retry may help, ContextOverflow where the prompt does not fit, EngineError otherwise.
    """

    name: str

    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Sample one turn. Closing the iterator early aborts the request in the engine."""
        ...

    async def abort(self, request_id: str) -> None:
        """End a request; its last chunk then has finish_reason "abort". Unknown ids are ignored."""
        ...

    async def pause(self) -> None:
        """Stop computing. Running requests are frozen, not lost; new ones wait."""
        ...

    async def resume(self) -> None:
        """Go on computing."""
        ...

    async def update_weights(self, update: WeightUpdate) -> None:
        """Swap the weights in place and drop every cache made with the old ones. Safe only while paused or idle."""
        ...

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs of token_ids[1:] at temperature 1, each under its prefix (length len(token_ids) - 1)."""
        ...

    async def status(self) -> EngineStatus:
        """What the engine says of itself."""
        ...

    async def probe(self) -> EngineReport:
        """Grade the engine by measurement."""
        ...

    async def close(self) -> None:
        """Close connections; the engine itself lives on if it is another process."""
        ...


class ReplicaView(Struct):
    """What routing knows of a replica. `down_until` is in seconds of a monotonic clock; `open` is false while its circuit
    breaker keeps calls away.

    Example: ReplicaView(place=0, name="vllm-0", in_flight=3, down_until=0.0)
    """

    place: int
    name: str = ""
    in_flight: int = 0
    down_until: float = 0.0
    open: bool = True


class RoutedCall(Struct):
    """What routing knows of a call: its rollout, the replica that has its prefix (-1: none), its lengths in tokens.

    Example: RoutedCall(rollout_id="s0003-g02-m5", preferred=1, prompt_tokens=4096, shared_tokens=4000)
    """

    rollout_id: str
    preferred: int = -1
    prompt_tokens: int = 0
    shared_tokens: int = 0


@runtime_checkable
class Router(Protocol):
    """Which replica a call goes to: a pure policy over plain values."""

    def choose(self, replicas: Sequence[ReplicaView], call: RoutedCall, now: float) -> int | None:
        """The place of the replica to use; None when none may be asked now. `now` is in seconds of a monotonic clock."""
        ...


class ChatChunk(Struct):
    """A piece of the answer of an engine's own chat endpoint. The last chunk has a finish reason and the engine's own counts.

    `prompt_ids` (first chunk) and `token_ids` with `logprobs` only from engines that give them (grade "tokens"); `deltas` are
    what the engine parsed, and are left empty where ids are given.

    Example: ChatChunk(deltas=(StreamDelta(content="hel"),))
    """

    deltas: tuple[StreamDelta, ...] = ()
    prompt_ids: list[int] = []
    token_ids: list[int] = []
    logprobs: list[float] = []
    policy_version: int = 0
    finish_reason: Literal["stop", "length", "tool_calls", "abort"] | None = None
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    cached_tokens: int = 0


@runtime_checkable
class ChatEngine(Protocol):
    """An engine with a chat endpoint of its own: messages in, deltas (and ids, where it can) out.

    Raises what Engine raises. An engine that offers this alone is graded below "tokens".
    """

    name: str

    def chat(self, turn: ChatTurn) -> AsyncIterator[ChatChunk]:
        """Sample one turn under the engine's own template. Closing the iterator early aborts the request in the engine."""
        ...
