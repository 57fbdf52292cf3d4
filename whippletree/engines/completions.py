"""Client of a server that samples tokens from token-id prompts over POST {base}/v1/completions.

It serves any such server as it is (generate and score); engines with control routes derive from it (embedded, vLLM).

    caller ── generate ──► POST, events ──► TurnReader ──► TokenChunk
    caller closes the iterator, or abort(id) ──► the HTTP response is closed ──► the server ends the request

Who waits for whom: `generate` waits for the server's next bytes, at most `Timeouts.read` seconds; abort and closing unblock it.

Invariants (tests/engines/test_completions_client.py):
- a turn's chunks are those of wire.TurnReader: aligned, with one end;
- every failure of the connection is EngineUnavailable;
- closing the iterator early, or abort, closes the HTTP response, and no connection is left open by `close`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec

from whippletree.engines.probe import Observation, probe_engine
from whippletree.engines.transport import Running, Timeouts, Transport
from whippletree.engines.turn import TurnReader
from whippletree.engines.wire import CompletionRequest, Piece, StreamOptions, completion_pieces, prompt_scores
from whippletree.errors import EngineError, EngineUnavailable
from whippletree.types import EngineReport, EngineStatus, GenerateRequest, Struct, TokenChunk, WeightUpdate, ids_json


class ModelCard(Struct):
    """One entry of /v1/models.

    Example: ModelCard(id="policy", max_model_len=1024)
    """

    id: str
    max_model_len: int | None = None


class ModelList(Struct):
    """Reply of /v1/models.

    Example: ModelList(data=[ModelCard(id="policy")])
    """

    data: list[ModelCard] = []


class CompletionsEngine:
    """Engine over a plain token-in /v1/completions server. Its weights never change, so its policy version is given.

    A subclass overrides `route`, `joins`, `encode` and `reader` for another wire form, and the control methods.
    """

    name = "completions"
    route = "/v1/completions"
    joins = True  # `reader` takes several events joined by commas as one

    def __init__(
        self,
        base_url: str,
        *,
        model: str = "policy",
        api_key: str = "",
        timeouts: Timeouts | None = None,
        policy_version: int = 0,
        name: str = "",
    ) -> None:
        """`base_url` is the server's root, without /v1; `name` tells replicas of one kind apart.

        Raises ConfigurationError when the URL is not an http(s) URL.
        """
        self.name = name or self.name
        root = base_url.rstrip("/").removesuffix("/v1")
        self.http = Transport(self.name, root, api_key=api_key, timeouts=timeouts)
        self.model = model
        self.policy_version = policy_version
        self._running: dict[str, Running] = {}

    # --- the wire form; what a subclass may override ---

    def encode(self, request: GenerateRequest) -> bytes:
        """Body of the streamed sampling request."""
        sampling = request.sampling
        return msgspec.json.encode(
            CompletionRequest(
                model=self.model,
                prompt=ids_json(request.prompt_ids),
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=0.0,
                repetition_penalty=1.0,
                seed=sampling.seed,
                stop_token_ids=request.stop_token_ids,
                ignore_eos=True,
                skip_special_tokens=False,
                logprobs=0,
                return_token_ids=True,
                request_id=request.request_id,
                stream=True,
                stream_options=StreamOptions(include_usage=True),
            )
        )

    def reader(self) -> Callable[[list[bytes]], list[Piece]]:
        """Reads the events of one stream, read by read, or a whole reply. It raises msgspec.DecodeError."""
        return completion_pieces

    async def version(self) -> int:
        """Policy version to label a turn's tokens with, asked at its first token, unless the server labels tokens itself."""
        return self.policy_version

    # --- Engine ---

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Sample one turn (see protocols.Engine). A request id may be in flight once. Raises EngineError and its kinds."""
        if request.request_id in self._running:
            raise EngineError(f"{self.name}: request {request.request_id} is already in flight", "give each request its own id")
        running = self._running[request.request_id] = Running()
        turn = TurnReader(self.name, request.request_id, self.policy_version)
        try:
            async with aclosing(self._chunks(request, running, turn)) as chunks:
                async for chunk in chunks:
                    yield chunk
            last = turn.end()
        except EngineUnavailable:
            if not (running.aborted or turn.finished):
                raise
            last = turn.aborted() if running.aborted else turn.end()
        finally:
            del self._running[request.request_id]
            running.close()
        yield last

    async def abort(self, request_id: str) -> None:
        """End a request of this client by closing its connection; its last chunk has finish_reason "abort"."""
        running = self._running.get(request_id)
        if running is not None:
            running.end()

    async def pause(self) -> None:
        """Refused: a plain completions server cannot be paused."""
        raise self._no_control("pause")

    async def resume(self) -> None:
        """Refused: a plain completions server cannot be paused."""
        raise self._no_control("resume")

    async def update_weights(self, update: WeightUpdate) -> None:
        """Refused: a plain completions server keeps its weights."""
        raise self._no_control(f"load policy version {update.policy_version}")

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs of token_ids[1:] at temperature 1 (length len - 1). The ids must leave room for one sampled token."""
        ids = list(token_ids)
        if len(ids) < 2:
            return []
        body = CompletionRequest(
            model=self.model,
            prompt=ids_json(ids),
            max_tokens=1,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            repetition_penalty=1.0,
            prompt_logprobs=1,
            return_token_ids=True,
            stream=False,
        )
        data = await self.http.request("POST", "/v1/completions", msgspec.json.encode(body), seconds=self.http.timeouts.read)
        try:
            return prompt_scores(data, ids, self.name)
        except msgspec.DecodeError as error:
            raise self.http.garbled(error, data) from error

    async def status(self) -> EngineStatus:
        """Model and context length from /v1/models. Raises EngineError when the server does not serve the model."""
        card = await self.model_card()
        return EngineStatus(
            name=self.name,
            model=card.id,
            policy_version=await self.version(),
            context_length=card.max_model_len or 0,
            running=len(self._running),
        )

    async def probe(self) -> EngineReport:
        """Grade the server by measurement (probe.probe_engine)."""
        return await probe_engine(self)

    async def close(self) -> None:
        """End what is in flight and close the connections."""
        for running in list(self._running.values()):
            running.end()
        await self.http.close()

    # --- for subclasses and the probe ---

    async def observe(self, request: GenerateRequest) -> Observation:
        """What the server sends for one turn, before any check; for the probe of servers that `generate` refuses."""
        text, ids, logprobs = "", 0, 0
        async with aclosing(self._batches(request, Running())) as batches:
            async for piece in (piece async for pieces in batches for piece in pieces):
                if piece.error is not None:
                    raise EngineError(f"{self.name}: {piece.error.message}", "read the engine's log")
                text += piece.text
                ids += len(piece.token_ids or ())
                logprobs += sum(value is not None for value in piece.logprobs or ())
        return Observation(text=bool(text), token_ids=ids, logprobs=logprobs)

    async def model_card(self) -> ModelCard:
        """This client's model as the server describes it."""
        served = await self.http.call("GET", "/v1/models", ModelList)
        for card in served.data:
            if card.id == self.model:
                return card
        names = ", ".join(card.id for card in served.data) or "nothing"
        cause = f"{self.name} at {self.http.base_url} serves {names}, not {self.model}"
        raise EngineError(cause, "set the engine's model name")

    async def _chunks(self, request: GenerateRequest, running: Running, turn: TurnReader) -> AsyncGenerator[TokenChunk, None]:
        labelled = False
        async with aclosing(self._batches(request, running)) as batches:
            async for pieces in batches:
                first = None if labelled else next((piece for piece in pieces if piece.token_ids), None)
                if first is not None:
                    labelled = True
                    if first.policy_version is None:
                        turn.policy_version = await self.version()
                for chunk in turn.feed_all(pieces):
                    yield chunk

    async def _batches(self, request: GenerateRequest, running: Running) -> AsyncGenerator[list[Piece], None]:
        """What the server sends, by network read."""
        read = self.reader()
        body = self.encode(request)
        who = f"{self.name}, request {request.request_id}"
        async with aclosing(self.http.stream(self.route, body, running, who, joins=self.joins)) as received:
            async for batch in received:
                try:
                    yield read(batch.events)
                except msgspec.DecodeError as error:
                    raise self.http.garbled(error, batch.events[0]) from error

    def _no_control(self, what: str) -> EngineError:
        return EngineError(f"{self.name} at {self.http.base_url} cannot {what}", "use the embedded or the vllm engine")
