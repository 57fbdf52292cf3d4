"""Client of a server that samples tokens from token-id prompts over POST {base}/v1/completions.

It serves any such server as it is (generate and score); engines with control routes derive from it (embedded, vLLM).

    caller ── generate ──► POST, events ──► TurnReader ──► TokenChunk
    caller closes the iterator, or abort(id) ──► the HTTP response is closed ──► the server ends the request

Who waits for whom: `generate` waits for the server's next bytes, at most `read_seconds`; abort and closing unblock it at once.

Invariants (tests/engines/test_completions_client.py):
- a turn's chunks are those of wire.TurnReader: aligned, with one end;
- every failure of the connection is EngineUnavailable; nothing else of aiohttp leaves this module;
- closing the iterator early, or abort, closes the HTTP response, and no connection is left open by `close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from whippletree.engines.probe import Observation, probe_engine
from whippletree.engines.wire import (
    CompletionRequest,
    EventReader,
    Piece,
    StreamOptions,
    TurnReader,
    completion_piece,
    prompt_scores,
    refusal,
)
from whippletree.errors import ConfigurationError, EngineError, EngineUnavailable
from whippletree.types import EngineReport, EngineStatus, GenerateRequest, Struct, TokenChunk, WeightUpdate

R = TypeVar("R")
DRAIN_SECONDS = 1.0
KEEP_SECONDS = 3.0  # idle connections; less than the 5 s after which vLLM closes them


class Timeouts(Struct):
    """Limits of a client's waits, seconds. `read` bounds the silence between bytes, not a turn; a paused engine is silent.

    Example: Timeouts(connect=5.0, read=600.0, control=120.0)
    """

    connect: float = 5.0
    read: float = 600.0
    control: float = 120.0


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


class _Running:
    """A request in flight: what abort needs to end it."""

    def __init__(self) -> None:
        self.aborted = asyncio.Event()
        self.response: aiohttp.ClientResponse | None = None

    def end(self) -> None:
        self.aborted.set()
        if self.response is not None:
            self.response.close()


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read past the last event to the end of the reply, so that its connection can be used again; do not insist."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while not response.content.at_eof():
                await response.content.readany()


class CompletionsEngine:
    """Engine over a plain token-in /v1/completions server. Its weights never change, so its policy version is given.

    A subclass overrides `route`, `encode` and `read` for another wire form, and the control methods.
    """

    name = "completions"
    route = "/v1/completions"

    def __init__(
        self,
        base_url: str,
        *,
        model: str = "policy",
        api_key: str = "",
        timeouts: Timeouts | None = None,
        policy_version: int = 0,
    ) -> None:
        """`base_url` is the server's root, without /v1. Raises ConfigurationError when it is not an http(s) URL."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                f"engine URL {base_url!r} is not an http(s) URL", "write for example http://127.0.0.1:8100"
            )
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.model = model
        self.policy_version = policy_version
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeouts = timeouts or Timeouts()
        self._session: aiohttp.ClientSession | None = None
        self._running: dict[str, _Running] = {}

    # --- the wire form; what a subclass may override ---

    def encode(self, request: GenerateRequest) -> bytes:
        """Body of the streamed sampling request."""
        sampling = request.sampling
        return msgspec.json.encode(
            CompletionRequest(
                model=self.model,
                prompt=request.prompt_ids,
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

    def read(self, data: bytes) -> Piece:
        """One event of the stream, or a whole reply. Raises msgspec.DecodeError."""
        return completion_piece(data)

    async def version(self) -> int:
        """Policy version to label a turn's tokens with, asked at its first token, unless the server labels tokens itself."""
        return self.policy_version

    # --- Engine ---

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Sample one turn (see protocols.Engine). A request id may be in flight once. Raises EngineError and its kinds."""
        if request.request_id in self._running:
            raise EngineError(f"{self.name}: request {request.request_id} is already in flight", "give each request its own id")
        running = self._running[request.request_id] = _Running()
        turn = TurnReader(self.name, request.request_id, self.policy_version)
        try:
            async with aclosing(self._chunks(request, running, turn)) as chunks:
                async for chunk in chunks:
                    yield chunk
            last = turn.end()
        except EngineUnavailable:
            if not (running.aborted.is_set() or turn.finished):
                raise
            last = turn.aborted() if running.aborted.is_set() else turn.end()
        finally:
            del self._running[request.request_id]
            if running.response is not None:
                running.response.close()
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
            prompt=ids,
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
        data = await self.request("POST", "/v1/completions", body, seconds=self._timeouts.read)
        try:
            return prompt_scores(data, ids, self.name)
        except msgspec.DecodeError as error:
            raise self._garbled(error) from error

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
        if self._session is not None:
            await self._session.close()
            self._session = None

    # --- for subclasses and the probe ---

    async def observe(self, request: GenerateRequest) -> Observation:
        """What the server sends for one turn, before any check; for the probe of servers that `generate` refuses."""
        text, ids, logprobs = "", 0, 0
        async with aclosing(self._pieces(request, _Running())) as pieces:
            async for piece in pieces:
                if piece.error is not None:
                    raise EngineError(f"{self.name}: {piece.error.message}", "read the engine's log")
                text += piece.text
                ids += len(piece.token_ids or ())
                logprobs += sum(value is not None for value in piece.logprobs or ())
        return Observation(text=bool(text), token_ids=ids, logprobs=logprobs)

    async def model_card(self) -> ModelCard:
        """This client's model as the server describes it."""
        served = await self.call("GET", "/v1/models", ModelList)
        for card in served.data:
            if card.id == self.model:
                return card
        names = ", ".join(card.id for card in served.data) or "nothing"
        raise EngineError(f"{self.name} at {self.base_url} serves {names}, not {self.model}", "set the engine's model name")

    async def call(self, method: str, path: str, reply: type[R], body: Struct | None = None) -> R:
        """One control request with a typed reply. Raises EngineError and its kinds."""
        data = await self.request(method, path, body, seconds=self._timeouts.control)
        try:
            return msgspec.json.decode(data or b"{}", type=reply)
        except msgspec.DecodeError as error:
            raise self._garbled(error) from error

    async def request(self, method: str, path: str, body: Struct | None = None, *, seconds: float) -> bytes:
        """One whole HTTP exchange within `seconds`: the body of a 2xx reply. Raises EngineError and its kinds."""
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=self._timeouts.connect)
        try:
            async with await self._send(method, path, None if body is None else msgspec.json.encode(body), timeout) as response:
                data = await response.read()
                if response.status >= 300:
                    raise refusal(response.status, data, self.name)
                return data
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unavailable(error, path) from error

    async def _chunks(self, request: GenerateRequest, running: _Running, turn: TurnReader) -> AsyncGenerator[TokenChunk, None]:
        labelled = False
        async with aclosing(self._pieces(request, running)) as pieces:
            async for piece in pieces:
                if piece.token_ids and not labelled:
                    labelled = True
                    turn.policy_version = await self.version() if piece.policy_version is None else piece.policy_version
                chunk = turn.feed(piece)
                if chunk is not None:
                    yield chunk

    async def _pieces(self, request: GenerateRequest, running: _Running) -> AsyncGenerator[Piece, None]:
        try:
            response = running.response = await self._post(self.encode(request), running)
            if response.status >= 300:
                raise refusal(response.status, await response.read(), f"{self.name}, request {request.request_id},")
            if response.content_type != "text/event-stream":
                yield self.read(await response.read())
                return
            events = EventReader()
            async for data in response.content.iter_any():
                for event in events.feed(data):
                    if event == b"[DONE]":
                        await _drain(response)
                        return
                    yield self.read(event)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unavailable(error, self.route) from error
        except msgspec.DecodeError as error:
            raise self._garbled(error) from error

    async def _post(self, body: bytes, running: _Running) -> aiohttp.ClientResponse:
        """Response headers of the sampling request, or EngineUnavailable once it is aborted."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect, sock_read=self._timeouts.read)
        post = asyncio.ensure_future(self._send("POST", self.route, body, timeout))
        stop = asyncio.ensure_future(running.aborted.wait())
        try:
            await asyncio.wait((post, stop), return_when=asyncio.FIRST_COMPLETED)
            if not post.done():
                raise EngineUnavailable(f"{self.name}: the request was aborted", "nothing to do")
            return post.result()
        finally:
            stop.cancel()
            if not post.done():
                post.cancel()

    async def _send(self, method: str, path: str, body: bytes | None, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Response headers. A kept connection that the server closed meanwhile is not an answer: it is tried once more."""
        session = self._open()
        try:
            return await session.request(method, self.base_url + path, data=body, timeout=timeout)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await session.request(method, self.base_url + path, data=body, timeout=timeout)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            headers = {"Content-Type": "application/json", **self._headers}
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_SECONDS)
            self._session = aiohttp.ClientSession(connector=connector, headers=headers)
        return self._session

    def _unavailable(self, error: BaseException, path: str) -> EngineUnavailable:
        reason = str(error) or type(error).__name__
        return EngineUnavailable(
            f"{self.name} at {self.base_url}{path}: {reason}", "check that the engine runs; a retry may help"
        )

    def _garbled(self, error: msgspec.DecodeError) -> EngineError:
        return EngineError(
            f"{self.name} at {self.base_url} sent what cannot be read: {error}", "check the URL and server version"
        )

    def _no_control(self, what: str) -> EngineError:
        return EngineError(f"{self.name} at {self.base_url} cannot {what}", "use the embedded or the vllm engine")
