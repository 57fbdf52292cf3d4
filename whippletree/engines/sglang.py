"""SGLang as an engine, unmodified, over its native routes.

    pause ──► retract: running requests wait, their cache is dropped ──► update_weights ──► load, flush, label ──► continue

It is written against SGLang's published source and tested against a local server of the same schema; see docs/sglang.md.

Invariants (tests/engines/test_sglang.py, on a local server of the published schema):
- a turn's tokens carry the server's label of the weights that sampled them;
- an update ends with the new label, or raises; the label that the server shows afterwards is checked;
- abort ends one request and no other, although the server takes the beginning of an id for the id.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from whippletree.engines.chat import ChatClient
from whippletree.engines.chat_wire import Wording
from whippletree.engines.completions import CompletionsEngine, ModelList
from whippletree.engines.probe_chat import probe_features
from whippletree.engines.sglang_wire import (
    AbortRequest,
    Empty,
    Load,
    LoadReply,
    LoadRequest,
    ModelInfo,
    PauseRequest,
    SglangGenerate,
    SglangSampling,
    SglangTurn,
    input_scores,
)
from whippletree.engines.transport import Timeouts
from whippletree.engines.vllm_wire import policy_version
from whippletree.engines.wire import Piece
from whippletree.errors import EngineError, EngineUnavailable
from whippletree.types import EngineReport, EngineStatus, GenerateRequest, Sampling, WeightUpdate

ID_END = "~"  # ends every id that is sent, so that no id is the beginning of another
ABORT_GRACE_SECONDS = 1.0  # for the server's own last event, before the connection is cut


class SglangEngine(ChatClient, CompletionsEngine):
    """Client of one SGLang server. Whether the server is paused is known only to the client that paused it."""

    name = "sglang"
    route = "/generate"
    joins = False  # its events may be cumulative: each is read by itself
    wording = Wording(reasoning="reasoning_content")

    def __init__(
        self,
        base_url: str,
        *,
        model: str = "policy",
        api_key: str = "",
        timeouts: Timeouts | None = None,
        name: str = "",
        context: int = 0,
        experts_per_token: int = 0,
    ) -> None:
        """As CompletionsEngine. `context` (tokens, 0 asks the server) and `experts_per_token` are those of SglangConfig."""
        super().__init__(base_url, model=model, api_key=api_key, timeouts=timeouts, name=name)
        self._context = context
        self._experts_per_token = experts_per_token
        self._paused = False

    def encode(self, request: GenerateRequest) -> bytes:
        """Body of the streamed sampling request."""
        body = self._body(request.request_id, list(request.prompt_ids), request.sampling, request.stop_token_ids)
        if request.schema is not None:
            schema = msgspec.json.encode(request.schema).decode()
            sampling = msgspec.structs.replace(body.sampling_params, json_schema=schema, ignore_eos=False)
            body = msgspec.structs.replace(body, sampling_params=sampling)
        return msgspec.json.encode(body)

    def reader(self) -> Callable[[list[bytes]], list[Piece]]:
        """Reads the events of one stream, cumulative or incremental, or a whole reply."""
        turn = SglangTurn(self._experts_per_token)
        return lambda events: [turn(event) for event in events]

    async def version(self) -> int:
        """The server's label of the weights that it serves now."""
        label = (await self._info()).weight_version
        return self.policy_version if label is None else policy_version(label, self.name)

    async def chat_version(self) -> int:
        """The server's label, as for `generate`."""
        return await self.version()

    async def abort(self, request_id: str) -> None:
        """End a request in the server, whichever client sent it. One of ours that the server does not know yet is cut off."""
        await self._control("/abort_request", AbortRequest(rid=request_id + ID_END))
        running = self._running.get(request_id)
        if running is not None:
            asyncio.get_running_loop().call_later(ABORT_GRACE_SECONDS, running.end)

    async def pause(self) -> None:
        """Running requests go back to the queue and wait; their cache is computed again, under the weights served then."""
        await self._control("/pause_generation", PauseRequest(mode="retract"))
        self._paused = True

    async def resume(self) -> None:
        """Go on computing."""
        await self._control("/continue_generation", Empty())
        self._paused = False

    async def update_weights(self, update: WeightUpdate) -> None:
        """Load `directory` (as the server sees it) in place, drop every cache, and label the weights. Raises EngineError.

        The server waits for running requests first, unless it is paused.
        """
        directory = Path(update.directory)
        if not any(directory.glob("*.safetensors")):
            raise EngineError(f"no *.safetensors in {directory}", "publish the weights before the update")
        load = LoadRequest(
            model_path=str(directory.absolute()),
            weight_version=str(update.policy_version),
            flush_cache=True,
            abort_all_requests=False,
        )
        reply = await self.http.call("POST", "/update_weights_from_disk", LoadReply, load)
        if not reply.success:
            cause = f"{self.name} refused {directory}: {reply.message}"
            raise EngineError(cause, "publish the whole model, as the learner does")
        label = (await self._info()).weight_version
        if label != str(update.policy_version):
            raise EngineError(
                f"{self.name} labels its weights {label!r} after an update to {update.policy_version}",
                "use an SGLang that takes weight_version with update_weights_from_disk",
            )
        self.policy_version = update.policy_version

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs of token_ids[1:] at temperature 1 (length len - 1). Nothing is sampled."""
        ids = list(token_ids)
        if len(ids) < 2:
            return []
        sampled = self._body(f"score-{uuid.uuid4().hex}", ids, Sampling(max_tokens=0), [])
        body = msgspec.structs.replace(sampled, stream=False, logprob_start_len=0, return_routed_experts=False)
        data = await self.http.request("POST", self.route, msgspec.json.encode(body), seconds=self.http.timeouts.read)
        try:
            return input_scores(data, ids)
        except msgspec.DecodeError as error:
            raise self.http.garbled(error, data) from error

    async def status(self) -> EngineStatus:
        """What SGLang says of itself. The model's name is not checked: after an update it is the path of the weights."""
        version = await self.version()
        running, waiting = await self._load()
        return EngineStatus(
            name=self.name,
            model=self.model,
            policy_version=version,
            context_length=self._context or await self._context_length(),
            paused=self._paused,
            running=running,
            waiting=waiting,
        )

    async def probe(self) -> EngineReport:
        """Grade it by measurement, and ask its chat endpoint for tool calls and schemas."""
        report = await super().probe()
        tool_calls, structured = await probe_features(self)
        return msgspec.structs.replace(report, tool_calls=tool_calls, structured=structured)

    def _body(self, request_id: str, ids: list[int], sampling: Sampling, stops: list[int]) -> SglangGenerate:
        return SglangGenerate(
            rid=request_id + ID_END,
            input_ids=ids,
            stream=True,
            return_logprob=True,
            logprob_start_len=-1,
            return_routed_experts=self._experts_per_token > 0,
            sampling_params=SglangSampling(
                max_new_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k or -1,
                min_p=0.0,
                repetition_penalty=1.0,
                ignore_eos=not stops,
                no_stop_trim=True,
                skip_special_tokens=False,
                stop_token_ids=stops,
                sampling_seed=sampling.seed,
            ),
        )

    async def _control(self, path: str, body: AbortRequest | PauseRequest | Empty) -> None:
        await self.http.request("POST", path, msgspec.json.encode(body), seconds=self.http.timeouts.control)

    async def _info(self) -> ModelInfo:
        """From the newer route, or the older one where the server does not have it."""
        try:
            return await self.http.call("GET", "/model_info", ModelInfo)
        except EngineUnavailable:
            raise
        except EngineError:
            return await self.http.call("GET", "/get_model_info", ModelInfo)

    async def _context_length(self) -> int:
        served = await self.http.call("GET", "/v1/models", ModelList)
        return served.data[0].max_model_len or 0 if served.data else 0

    async def _load(self) -> tuple[int, int]:
        """Requests that are computed and that wait; those of this client where the server does not tell."""
        try:
            ranks = await self.http.call("GET", "/get_load", list[Load])
        except EngineUnavailable:
            raise
        except EngineError:
            return len(self._running), 0
        waiting = sum(rank.num_waiting_reqs for rank in ranks)
        return sum(rank.num_reqs for rank in ranks) - waiting, waiting
