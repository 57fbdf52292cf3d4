"""A whole left half for tests: store, gateway, renderer, scripted engine, tasks, and controllers on top of them."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from whippletree.control.config import ControlConfig, DeadlineConfig, HarnessBinding, PoolConfig
from whippletree.control.policy import RestartPolicy
from whippletree.control.process import run
from whippletree.control.spec import ControllerSpec
from whippletree.engines.scripted import ScriptedEngine
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import load_secret
from whippletree.gateway.server import Parts, serving
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.sandboxes import SandboxConfig
from whippletree.store import open_store
from whippletree.types import Rollout, RolloutSpec

CORPUS = [
    '<|im_start|>user start at amber and submit the code {"command": "cat amber"} {"next": "birch"} done 0123456789\n'
] * 8
END = "<|im_end|>"
REWARD = '> "$WHIPPLETREE_ROOT/logs/verifier/reward.txt"'
PASS_IF_DONE = f"#!/bin/sh\n[ -e done ] && echo 1 {REWARD} || echo 0 {REWARD}\n"


def write_model(directory: Path) -> Path:
    """The files that a renderer needs: a small byte-level tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<|endoftext|>", "<|im_start|>", END]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    marks = ("<tool_call>", "</tool_call>", "<think>", "</think>")
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in marks])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [tokenizer.token_to_id(END)]}))
    return directory


def write_task(directory: Path, test: str = PASS_IF_DONE, toml: str = "") -> Path:
    """A task that is passed when /app/done exists."""
    texts = {
        "task.toml": toml,
        "instruction.md": "make a file called done",
        "environment/Dockerfile": "FROM x\nWORKDIR /app\n",
        "tests/test.sh": test,
    }
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


class World:
    """One run directory with a gateway that serves in this event loop."""

    def __init__(self, directory: Path, kind: str = "process") -> None:
        self.directory = directory
        self.store = open_store(directory / "store")
        self.secret = load_secret(directory / "secret")
        write_model(directory / "model")
        self.renderer = load_renderer(directory / "model", RenderingConfig(template="tiny"))
        self.tokenizer = Tokenizer.from_file(str(directory / "model" / "tokenizer.json"))
        self.engine = ScriptedEngine(self.answer, context=8192)
        self.gateway = GatewayConfig(engine_wait_limit=5.0)
        self.port = 0
        self._short = tempfile.TemporaryDirectory(prefix="wt-")  # the sandboxes' sockets need a short path
        self.sandbox = SandboxConfig(kind=kind, root=str(Path(self._short.name) / "boxes"))
        self.turns = 0
        self.controller: asyncio.Task | None = None

    def close(self) -> None:
        self.store.close()
        self._short.cleanup()

    def say(self, prompt: str) -> str:
        """What the model answers; tests replace it."""
        return "done"

    def answer(self, prompt_ids: Sequence[int]) -> list[int]:
        self.turns += 1
        text = self.say(self.tokenizer.decode(list(prompt_ids), skip_special_tokens=False))
        return [*self.tokenizer.encode(text, add_special_tokens=False).ids, self.tokenizer.token_to_id(END)]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        parts = Parts(store=self.store, engines=[self.engine], renderer=self.renderer, secret=self.secret)
        config = msgspec.structs.replace(self.gateway, port=self.port)
        async with serving(config, parts) as port:
            self.port = port
            yield

    def add(self, count: int, task: Path, *, harness: str = "http", source: str = "tests", max_attempts: int = 3) -> list[str]:
        names = [f"{source}-{task.name}-{number}" for number in range(count)]
        specs = [
            RolloutSpec(
                rollout_id=name,
                group_id=task.name,
                source=source,
                task_id=task.name,
                task_path=str(task),
                harness=harness,
                max_attempts=max_attempts,
            )
            for name in names
        ]
        self.store.create_rollouts(specs).result()
        return names

    def spec(self, *, adapter: str = "harness_parts:HttpHarness", harness: str = "http", **control: object) -> ControllerSpec:
        settings = control.pop("settings", {"command": "touch done"})
        deadlines = control.pop("deadlines", DeadlineConfig(grace=2.0, seal=10.0))
        config = ControlConfig(
            **{
                "pool": PoolConfig(hosts=2, tenants=8, restart=RestartPolicy(limit=9, first_delay=0.05)),
                "deadlines": deadlines,
                **control,
            }
        )
        return ControllerSpec(
            directory=str(self.directory),
            store=str(self.directory / "store"),
            secret=str(self.directory / "secret"),
            gateway_url=f"http://127.0.0.1:{self.port}",
            harnesses=(HarnessBinding(harness=harness, adapter=adapter, settings=settings),),
            sandbox=self.sandbox,
            control=config,
        )

    @asynccontextmanager
    async def controlling(self, spec: ControllerSpec) -> AsyncIterator[asyncio.Task]:
        """A controller in this event loop while the body runs."""
        stop = asyncio.Event()
        task = self.controller = asyncio.create_task(run(spec, stop))
        try:
            yield task
        finally:
            stop.set()
            self.controller = None
            await task

    async def finished(self, names: Sequence[str], seconds: float = 60.0) -> list[Rollout]:
        """Waits until all of them have ended."""
        limit = time.monotonic() + seconds
        while True:
            rollouts = [self.store.rollout(name) for name in names]
            if all(rollout.terminal for rollout in rollouts):
                return rollouts
            if self.controller is not None and self.controller.done():
                self.controller.result()
            assert time.monotonic() < limit, [(rollout.spec.rollout_id, rollout.state) for rollout in rollouts]
            await asyncio.sleep(0.01)

    def boxes(self) -> list[str]:
        """Sandboxes that are there."""
        root = Path(self.sandbox.root)
        prefix = re.compile(r"wt-[0-9a-f]{10}-")
        return [path.name for path in root.iterdir() if prefix.match(path.name)] if root.exists() else []


async def until(condition, seconds: float = 60.0) -> None:
    """Waits for a condition."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        await asyncio.sleep(0.01)
