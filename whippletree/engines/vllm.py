"""vLLM (0.32) as an engine, unmodified: started with `vllm_command`, or by hand with the same flags.

Turns go over vLLM's token-in, token-out route, because its replies say which weight version sampled each token; scores go over
/v1/completions. Weights are loaded in place by a worker extension (vllm_plugin/whippletree_vllm.py).

    update_weights ──► label "loading" ──► load in every worker ──► drop the prefix cache ──► label = policy version
                              └── a failure leaves the label "loading": tokens sampled under it are refused, none mislabelled

Invariants (tests/engines/test_vllm_client.py on recorded replies, tests/engines/test_vllm_server.py on a real server):
- every token's policy version is the server's own label for it, whichever process swapped the weights;
- sampling that makes vLLM's logprobs something else than those of the whole distribution is refused;
- a weight update either leaves the new weights, no cache of the old ones and the new label, or raises and serves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from whippletree.engines.chat import ChatClient
from whippletree.engines.chat_wire import Wording
from whippletree.engines.completions import CompletionsEngine
from whippletree.engines.config import VllmConfig
from whippletree.engines.probe_chat import probe_features
from whippletree.engines.vllm_plugin.whippletree_vllm import checksum, weight_files
from whippletree.engines.vllm_wire import (
    LOADING,
    NewVersion,
    Paused,
    RequestIds,
    Rpc,
    RpcReply,
    Success,
    VllmGenerate,
    VllmSampling,
    VllmStructure,
    WeightInfo,
    gauge,
    policy_version,
    vllm_pieces,
)
from whippletree.engines.wire import Piece, StreamOptions
from whippletree.errors import ConfigurationError, EngineError, EngineUnavailable
from whippletree.types import EngineReport, EngineStatus, GenerateRequest, Struct, WeightUpdate, ids_json

PLUGIN = Path(__file__).parent / "vllm_plugin"
REQUEST_PREFIX = "generate-tokens-"  # vLLM puts it before the id that a generate request brings
WORKER_FAILED = "Worker failed"  # vLLM's word for an exception in a worker's method
ABORT_SECONDS = 30.0
ABORT_GRACE_SECONDS = 1.0  # for the server's own last event, which says the versions, before the connection is cut


class VllmEngine(ChatClient, CompletionsEngine):
    """Client of one vLLM server. Several clients, in several processes, may serve one server."""

    name = "vllm"
    route = "/inference/v1/generate"
    wording = Wording(reasoning="reasoning", token_ids=True, request_id=True)

    def encode(self, request: GenerateRequest) -> bytes:
        """Body of the streamed sampling request. Refuses top_p and top_k: vLLM's processed logprobs are those after them."""
        sampling = request.sampling
        if sampling.top_p != 1.0 or sampling.top_k not in (0, -1):
            raise EngineError(
                f"vllm, request {request.request_id}: with top_p {sampling.top_p:g} and top_k {sampling.top_k}, vLLM's logprobs"
                " are not those of the whole distribution",
                "set sampling.top_p = 1 and sampling.top_k = 0, or use the embedded engine",
            )
        return msgspec.json.encode(
            VllmGenerate(
                request_id=request.request_id,
                model=self.model,
                token_ids=ids_json(request.prompt_ids),
                stream=True,
                stream_options=StreamOptions(include_usage=True),
                sampling_params=VllmSampling(
                    max_tokens=sampling.max_tokens,
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    top_k=sampling.top_k,
                    min_p=0.0,
                    repetition_penalty=1.0,
                    seed=sampling.seed,
                    logprobs=0,
                    ignore_eos=request.schema is None,  # a schema's text ends with the model's own end
                    detokenize=False,
                    stop_token_ids=request.stop_token_ids,
                    structured_outputs=None if request.schema is None else VllmStructure(json=request.schema),
                ),
            )
        )

    def reader(self) -> Callable[[list[bytes]], list[Piece]]:
        """Reads the events of one stream, read by read, or a whole reply."""
        return vllm_pieces

    async def version(self) -> int:
        """The server's label of the weights that it serves now, or the last known one while an update is under way."""
        label = (await self.http.call("GET", "/weight_info", WeightInfo)).weight_version
        if label != LOADING:
            self.policy_version = policy_version(label)
        return self.policy_version

    async def chat_version(self) -> int:
        """The server's label, as for `generate`: chat replies do not say which weights sampled a token."""
        return await self.version()

    async def probe(self) -> EngineReport:
        """Grade it by measurement, and ask its chat endpoint for tool calls and schemas."""
        report = await super().probe()
        tool_calls, structured = await probe_features(self)
        return msgspec.structs.replace(report, tool_calls=tool_calls, structured=structured)

    async def abort(self, request_id: str) -> None:
        """End a request in the server, whichever client sent it. One of ours that the server does not know yet is cut off."""
        body = RequestIds(request_ids=[REQUEST_PREFIX + request_id])
        await self.http.request("POST", "/abort_requests", msgspec.json.encode(body), seconds=ABORT_SECONDS)
        running = self._running.get(request_id)
        if running is not None:
            asyncio.get_running_loop().call_later(ABORT_GRACE_SECONDS, running.end)

    async def pause(self) -> None:
        """Freeze running requests between two tokens; new ones wait."""
        await self._control("/pause?mode=keep")

    async def resume(self) -> None:
        """Go on computing."""
        await self._control("/resume")

    async def update_weights(self, update: WeightUpdate) -> None:
        """Load `directory` (as the server sees it) in place, drop every cache, and label the weights. Raises EngineError."""
        files = weight_files(update.directory)
        if not files:
            raise EngineError(f"no *.safetensors in {update.directory}", "publish the weights before the update")
        before = (await self.http.call("GET", "/weight_info", WeightInfo)).weight_version
        await self._label(LOADING)
        rpc = Rpc(method="whippletree_load", args=[str(Path(update.directory).absolute())])
        expected, reply = await asyncio.gather(asyncio.to_thread(checksum, files), self._load(rpc))
        refused = [loaded.refused for loaded in reply.results if loaded.refused]
        if refused:
            if len(refused) == len(reply.results):
                await self._label(before)
            raise EngineError(f"vllm refused {update.directory}: {refused[0]}", "publish the whole model, as the learner does")
        wrong = [loaded.checksum for loaded in reply.results if loaded.checksum != expected]
        if wrong or not reply.results:
            raise EngineError(
                f"vllm read other files in {update.directory} than this process sees (checksum {wrong} instead of {expected})",
                "use a directory that both see, and write it whole before the update",
            )
        reset = await self.http.call("POST", "/reset_prefix_cache?reset_running_requests=true", Success)
        if not reset.success:
            raise EngineError("vllm could not drop its prefix cache", "pause the engine before the update")
        await self._label(str(update.policy_version))

    async def status(self) -> EngineStatus:
        """What vLLM says of itself; policy_version is -1 while an update is unfinished. Raises EngineError (another model)."""
        card = await self.model_card()
        label = (await self.http.call("GET", "/weight_info", WeightInfo)).weight_version
        paused = await self.http.call("GET", "/is_paused", Paused)
        metrics = (await self.http.request("GET", "/metrics", seconds=30.0)).decode()
        return EngineStatus(
            name=self.name,
            model=card.id,
            policy_version=-1 if label == LOADING else policy_version(label),
            context_length=card.max_model_len or 0,
            paused=paused.is_paused,
            running=gauge(metrics, "vllm:num_requests_running"),
            waiting=gauge(metrics, "vllm:num_requests_waiting"),
        )

    async def _load(self, rpc: Rpc) -> RpcReply:
        try:
            return await self.http.call("POST", "/collective_rpc", RpcReply, rpc)
        except EngineUnavailable as error:
            if WORKER_FAILED not in error.cause:
                raise
            raise EngineError(
                error.cause, "start vLLM with the worker extension (docs/vllm.md); after a failed load restart the engine"
            ) from error

    async def _control(self, path: str) -> None:
        await self.http.call("POST", path, Success)

    async def _label(self, label: str) -> None:
        await self.http.call("POST", "/update_weight_version", Success, NewVersion(new_version=label))


# --- starting it ---


class VllmCommand(Struct):
    """How to start a server: the command, and what to set in its environment beside the usual.

    Example: VllmCommand(argv=("/opt/vllm/bin/python", "-m", "vllm.entrypoints.openai.api_server"), environment={})
    """

    argv: tuple[str, ...]
    environment: dict[str, str]


def vllm_command(config: VllmConfig) -> VllmCommand:
    """Command of a server that serves config.model; it is ready once /health answers 200. Raises ConfigurationError."""
    for key in ("python", "model"):
        if not getattr(config, key):
            raise ConfigurationError(
                f"engine.{key} is not set", "vLLM needs an interpreter and a model directory to start with"
            )
    options: dict[str, str | int] = {
        "model": config.model,
        "served-model-name": config.name,
        "host": config.host,
        "port": config.port,
        "dtype": config.dtype,
        "max-num-seqs": config.max_running,
        "logprobs-mode": "processed_logprobs",
        "generation-config": "vllm",
        "worker-extension-cls": "whippletree_vllm.WeightLoader",
    }
    if config.context:
        options["max-model-len"] = config.context
    argv = [config.python, "-m", "vllm.entrypoints.openai.api_server"]
    argv += [f"--{name}={value}" for name, value in options.items()]
    argv += ["--enable-scale-out", "--enable-prompt-tokens-details", *(["--enforce-eager"] if config.eager else [])]
    argv += config.arguments
    environment = {
        "VLLM_SERVER_DEV_MODE": "1",  # pause, weight and cache routes; they are as open as the port, so bind loopback
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(PLUGIN),
        "OMP_NUM_THREADS": str(config.threads),
        "VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    return VllmCommand(argv=tuple(argv), environment={**environment, **config.environment})
