"""A gateway on real parts: SQLite store, a small trained tokenizer with the `tiny` template, scripted engines, real HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from direct import direct
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from whippletree.engines.scripted import Faults, ScriptedEngine
from whippletree.gateway.client import GatewayControl
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import control_key, mint
from whippletree.gateway.server import Parts, serving
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.store import open_store
from whippletree.types import RolloutSpec, Sampling

SECRET = bytes(range(32))
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]


def user(text: str) -> dict[str, str]:
    """A message of the user, as chat completions has it."""
    return {"role": "user", "content": text}


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition()` holds; the test's own time limit ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0.01)


class Halting(ScriptedEngine):
    """Stands still once a turn has so many tokens, the first time; `resume` lets it go on."""

    def __init__(self, *given: Any, halt_after: int, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.halted = asyncio.Event()
        self._halt_after = halt_after

    async def generate(self, request: Any) -> Any:
        count = 0
        async with aclosing(super().generate(request)) as chunks:
            async for chunk in chunks:
                yield chunk
                count += len(chunk.token_ids)
                if count >= self._halt_after and not self.halted.is_set():
                    await self.pause()
                    self.halted.set()


@contextmanager
def slow_disk(store: Any) -> Iterator[tuple[asyncio.Event, threading.Event]]:
    """Calls are recorded once the second event is set, or the block ends; the first is set when one is to be."""
    asked, may_record, record = asyncio.Event(), threading.Event(), store.record_call
    loop, disk = asyncio.get_running_loop(), ThreadPoolExecutor(1)

    def slowly(call: Any, payload: Any) -> Any:
        loop.call_soon_threadsafe(asked.set)
        may_record.wait(30)
        return record(call, payload).result()

    store.record_call = lambda call, payload: disk.submit(slowly, call, payload)
    try:
        yield asked, may_record
    finally:
        may_record.set()


def read_recording(name: str) -> list[dict[str, Any]]:
    """Exchanges of a recorded session of any harness, in order: name like "codex.subagent"."""
    with gzip.open(Path(__file__).parent / "recordings" / f"{name}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def recordings() -> Callable[[str], list[dict[str, Any]]]:
    return read_recording


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tokenizer.json and tokenizer_config.json of a byte-level BPE of 420 tokens; no weights."""
    directory = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(
        ['{"name": "bash", "arguments": {"command": "cat amber"}}', "the next file is birch\n"] * 8, trainer
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="session")
def renderer(model_dir: Path) -> Any:
    return load_renderer(model_dir, RenderingConfig(template="tiny", reasoning_format="think"))


def scripted(renderer: Any, answers: Sequence[str] | Callable[[str], str] | None) -> Any:
    """Answers as text → the script of an engine."""

    def script(prompt: Sequence[int]) -> list[int]:
        assert callable(answers)
        return list(renderer.codec.encode(answers(renderer.decode(list(prompt))) + "<|im_end|>"))

    if answers is None or callable(answers):
        return script if answers is not None else None
    return [renderer.codec.encode(text + "<|im_end|>") for text in answers]


class World:
    """One running gateway and what it stands on."""

    def __init__(self, store: Any, engines: list[ScriptedEngine], renderer: Any, config: GatewayConfig, port: int) -> None:
        self.store, self.engines, self.renderer, self.config, self.port = store, engines, renderer, config, port
        self.url = f"http://127.0.0.1:{port}"
        self.http: aiohttp.ClientSession
        self.control = GatewayControl(self.url, control_key(SECRET), patience=0.5)

    def calls(self, rollout_id: str = "r0", attempt: int = 1) -> list[Any]:
        return self.store.calls(rollout_id, attempt)

    def sampled_text(self, call: Any) -> str:
        return self.renderer.decode(self.store.payload(call).sampled_ids.tolist())

    def prompt_ids(self, call: Any) -> list[int]:
        """The whole prompt of a call, put together from the deltas in the store."""
        by_id = {item.call_id: item for item in self.calls(call.rollout_id, call.attempt)}
        payload = self.store.payload(call)
        if not call.parent_call_id:
            return payload.prompt_delta.tolist()
        parent = by_id[call.parent_call_id]
        sampled = self.store.payload(parent).sampled_ids.tolist()
        return [*self.prompt_ids(parent), *sampled, *payload.prompt_delta.tolist()]

    async def chat(
        self, messages: list[Any], *, rollout: str = "r0", attempt: int = 1, headers: Any = None, **fields: Any
    ) -> Any:
        """One whole reply, decoded; an error is returned with its status."""
        body = {"model": "policy", "messages": messages, "tools": TOOLS, **fields}
        key = {"Authorization": f"Bearer {mint(SECRET, rollout, attempt)}"}
        async with self.http.post(self.url + "/v1/chat/completions", json=body, headers={**key, **(headers or {})}) as response:
            return response.status, await response.json()


@pytest.fixture
def make_world(tmp_path: Path, renderer: Any) -> Callable[..., Any]:
    """`async with make_world(answers) as world`: rollouts r0, r1, r2 are running, attempt 1 each.

    `answers`: texts in order, a function of the prompt's text, or None for random tokens.
    """

    @asynccontextmanager
    async def make(
        answers: Sequence[str] | Callable[[str], str] | None = None,
        *,
        engines: list[ScriptedEngine] | None = None,
        sampling: Sampling | None = None,
        faults: Faults | None = None,
        context: int = 4096,
        rendering: Any = None,
        reports: Any = None,
        **config: Any,
    ) -> Any:
        used = rendering or renderer
        one = ScriptedEngine(scripted(used, answers), vocabulary=420, context=context, faults=faults or Faults())
        settings = GatewayConfig(**config)
        async with AsyncExitStack() as stack:
            store = open_store(tmp_path / "run")
            stack.callback(store.close)
            fixed = sampling or Sampling(max_tokens=400, seed=1)
            same = {"group_id": "g", "source": "s", "task_id": "t", "task_path": "/t", "harness": "h", "sampling": fixed}
            specs = [RolloutSpec(rollout_id=f"r{n}", **same) for n in range(3)]
            store.create_rollouts(specs).result()
            store.claim("worker", 3).result()
            parts = Parts(
                store=store, engines=[one] if engines is None else engines, renderer=used, secret=SECRET, reports=reports or {}
            )
            port = await stack.enter_async_context(serving(settings, parts))
            world = World(store, list(parts.engines), used, settings, port)
            world.http = await stack.enter_async_context(aiohttp.ClientSession())
            yield world

    return make


@pytest.fixture
def make_direct(tmp_path: Path, renderer: Any) -> Callable[..., Any]:
    """`async with make_direct(answers) as gateway`: as `make_world`, without HTTP; see direct.Direct."""

    @asynccontextmanager
    async def make(
        answers: Sequence[str] | Callable[[str], str] | None = None,
        *,
        engines: Sequence[Any] | None = None,
        faults: Faults | None = None,
        context: int = 4096,
        rendering: Any = None,
        **settings: Any,
    ) -> Any:
        used = rendering or renderer
        one = ScriptedEngine(scripted(used, answers), vocabulary=420, context=context, faults=faults or Faults())
        async with direct(tmp_path / "run", used, engines or [one], **settings) as gateway:
            yield gateway

    return make
