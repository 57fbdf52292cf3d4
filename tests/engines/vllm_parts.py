"""Parts of the vLLM tests: a tiny model, a real server, recordings of a real server, and a server that replays them.

`python tests/engines/vllm_parts.py PYTHON` records anew with the vLLM of that interpreter.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from whippletree.engines.config import VllmConfig
from whippletree.engines.vllm import VllmEngine, vllm_command
from whippletree.types import GenerateRequest, Sampling, Struct, WeightUpdate

PYTHON = os.environ.get("WHIPPLETREE_VLLM_PYTHON", "")
needs_vllm = pytest.mark.skipif(
    not PYTHON, reason="set WHIPPLETREE_VLLM_PYTHON to the interpreter of a vLLM environment (make env-vllm)"
)
RECORDINGS = Path(__file__).parent / "recordings"
SLOW_STEPS = Path(__file__).parent / "vllm_steps"
PROMPT = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29]
START_SECONDS = 240.0
CHAT_TOOL = {"type": "function", "function": {"name": "note", "parameters": {"type": "object", "properties": {}}}}


class Recording(Struct):
    """One exchange with a real server, byte for byte.

    Example: Recording(method="GET", path="/weight_info", status=200, content_type="application/json", body="{}")
    """

    method: str
    path: str
    status: int
    content_type: str
    body: str
    request: str = ""


def recording(name: str) -> Recording:
    return msgspec.json.decode((RECORDINGS / f"{name}.json").read_bytes(), type=Recording)


def turn(request_id: str = "r1", **sampling: Any) -> GenerateRequest:
    """A request after PROMPT; keyword arguments are those of Sampling."""
    return GenerateRequest(
        request_id=request_id, prompt_ids=PROMPT, sampling=Sampling(**{"max_tokens": 6, "seed": 1, **sampling})
    )


# --- replaying ---


class Replay:
    """What a replay server answers and what it was asked. Bodies are written in pieces of `piece` bytes."""

    def __init__(self, answers: Mapping[str, Recording], piece: int = 65536) -> None:
        self.answers = dict(answers)
        self.piece = piece
        self.asked: list[tuple[str, Any]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.asked.append((request.path_qs, json.loads(body) if body else None))
        answer = self.answers.get(request.path_qs)
        if answer is None:
            return web.json_response({"error": {"message": f"no recording for {request.path_qs}", "code": 404}}, status=404)
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
        await response.prepare(request)
        data = answer.body.encode()
        for start in range(0, len(data), self.piece):
            await response.write(data[start : start + self.piece])
        await response.write_eof()
        return response


@asynccontextmanager
async def serving(handler: Any) -> AsyncIterator[str]:
    """Run an aiohttp handler for every route; gives its base URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


# --- a real server ---


def tiny_model(directory: Path, *, seed: int, tied: bool = True, positions: int = 256) -> Path:
    """Write a random Qwen3 (0.1 M parameters, 307 ids, contexts of `positions` tokens) with tokenizer and chat template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the trail starts at amber and each file names the next one"] * 50, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template="{% for m in messages %}<|im_start|>{{m.role}}\n{{m.content}}<|im_end|>\n{% endfor %}",
    )
    config = Qwen3Config(
        vocab_size=len(wrapped),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        Qwen3ForCausalLM(config).float().save_pretrained(directory)
    wrapped.save_pretrained(directory)
    return directory


def reference_logprobs(directory: Path, token_ids: list[int]) -> list[float]:
    """transformers' logprobs of token_ids[1:] at temperature 1, float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([token_ids])).logits[0].float(), -1)
    return [float(logprobs[position, token]) for position, token in enumerate(token_ids[1:])]


@contextmanager
def vllm_server(python: str, model: Path, log: Path, arguments: Sequence[str] = ()) -> Iterator[str]:
    """Run vLLM on `model` in float32 until the block ends; gives its base URL. `arguments` may name what SLOW_STEPS holds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = VllmConfig(python=python, model=str(model), port=port, dtype="float32", max_running=32, kv_cache_gib=1)
    config = msgspec.structs.replace(config, arguments=["--block-size=32", *arguments])
    command = vllm_command(config)
    with log.open("wb") as output:
        environment = {**os.environ, **command.environment}
        environment["PYTHONPATH"] += f"{os.pathsep}{SLOW_STEPS}"
        process = subprocess.Popen(command.argv, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        asyncio.run(_ready(f"http://127.0.0.1:{port}", process, log))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


async def _ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                async with session.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)
    raise RuntimeError(f"vLLM did not come up: {log.read_text(errors='replace')[-2000:]}")


# --- recording ---


class _Recorder:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def __call__(
        self, name: str, method: str, path: str, body: Any = None, midway: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Keep one exchange; `midway` is awaited once the first bytes of the reply are there."""
        data = None if body is None else json.dumps(body)
        async with self.session.request(method, self.url + path, data=data) as response:
            content = await response.content.readany()
            if midway is not None:
                await midway()
            content += await response.content.read()
            kept = Recording(
                method=method,
                path=path,
                request=data or "",
                status=response.status,
                content_type=response.content_type,
                body=content.decode(),
            )
        (RECORDINGS / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")


def _completion(**changes: Any) -> dict[str, Any]:
    body = {"model": "policy", "prompt": PROMPT, "max_tokens": 6, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 1}
    stream = {"logprobs": 0, "return_token_ids": True, "stream": True, "stream_options": {"include_usage": True}}
    return {key: value for key, value in {**body, **stream, **changes}.items() if value is not None}


def _generate(**changes: Any) -> dict[str, Any]:
    sampling = {"max_tokens": 6, "temperature": 1.0, "seed": 1, "logprobs": 0, "ignore_eos": True, "detokenize": False}
    body = {
        "model": "policy",
        "request_id": "r1",
        "token_ids": PROMPT,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return {**body, "sampling_params": {**sampling, **changes.pop("sampling", {})}, **changes}


def _chat(**changes: Any) -> dict[str, Any]:
    body = {"model": "policy", "messages": [{"role": "user", "content": "the trail starts"}], "max_tokens": 6, "seed": 1}
    stream = {"temperature": 1.0, "logprobs": True, "return_token_ids": True, "stream": True}
    return {**body, **stream, "stream_options": {"include_usage": True}, **changes}


async def _record(url: str, first: Path, second: Path) -> None:
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(force_close=True)) as session:
        keep = _Recorder(session, url)
        whole = {"stream": None, "stream_options": None}
        await keep("models", "GET", "/v1/models")
        await keep("weight_info_start", "GET", "/weight_info")
        await keep("completion_stream", "POST", "/v1/completions", _completion())
        await keep("completion_whole", "POST", "/v1/completions", _completion(**whole))
        await keep(
            "completion_scores", "POST", "/v1/completions", _completion(**whole, max_tokens=1, prompt_logprobs=1, logprobs=None)
        )
        await keep("completion_without_ids", "POST", "/v1/completions", _completion(return_token_ids=None))
        await keep("completion_without_logprobs", "POST", "/v1/completions", _completion(logprobs=None))
        await keep("completion_text_only", "POST", "/v1/completions", _completion(logprobs=None, return_token_ids=None))
        await keep("completion_overflow", "POST", "/v1/completions", _completion(prompt=list(range(260))))
        await keep("completion_unknown_model", "POST", "/v1/completions", _completion(model="nobody"))
        await keep("generate_stream", "POST", "/inference/v1/generate", _generate())
        await keep("chat_stream", "POST", "/v1/chat/completions", _chat())
        await keep("chat_tools_refused", "POST", "/v1/chat/completions", _chat(tools=[CHAT_TOOL]))
        await keep("generate_overflow", "POST", "/inference/v1/generate", _generate(token_ids=list(range(260))))
        await keep("rpc_failure", "POST", "/collective_rpc", {"method": "no_such_method"})
        await keep("rpc_refused", "POST", "/collective_rpc", {"method": "whippletree_load", "args": ["/nonexistent"]})
        await keep("pause", "POST", "/pause?mode=keep")
        await keep("is_paused", "GET", "/is_paused")
        await keep("rpc_load", "POST", "/collective_rpc", {"method": "whippletree_load", "args": [str(second)]})
        await keep("reset_prefix_cache", "POST", "/reset_prefix_cache?reset_running_requests=true")
        await keep("update_weight_version", "POST", "/update_weight_version", {"new_version": "7"})
        await keep("weight_info", "GET", "/weight_info")
        await keep("resume", "POST", "/resume")
        engine = VllmEngine(url)

        async def swap() -> None:
            await engine.pause()
            await engine.update_weights(WeightUpdate(directory=str(first), policy_version=8))
            await engine.resume()

        swapped = _generate(sampling={"max_tokens": 60})
        await keep("generate_swap", "POST", "/inference/v1/generate", swapped, midway=swap)
        aborted = _generate(sampling={"max_tokens": 200})
        await keep("generate_abort", "POST", "/inference/v1/generate", aborted, midway=lambda: engine.abort("r1"))
        await engine.close()


def main() -> None:
    """Record every exchange that the tests replay."""
    import tempfile

    RECORDINGS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        first, second = (tiny_model(Path(scratch) / f"model-{seed}", seed=seed) for seed in (1, 2))
        with vllm_server(sys.argv[1], first, Path(scratch) / "vllm.log") as url:
            asyncio.run(_record(url, first, second))


if __name__ == "__main__":
    main()
