"""A gateway over a scripted engine, and one attempt of an adapter against it, launched as a controller launches it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from whippletree import sandboxes
from whippletree.control.config import ControlConfig, HarnessBinding
from whippletree.control.launch import Launchers
from whippletree.control.policy import AgentEnd
from whippletree.control.records import ACCOUNT
from whippletree.engines.scripted import ScriptedEngine
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import mint
from whippletree.gateway.server import Parts, serving
from whippletree.protocols import AttemptSpec, Limits, SandboxSpec
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.store import open_store
from whippletree.traces import build_trace, read_account, reconcile
from whippletree.types import Call, RolloutSpec, Sampling

SECRET = bytes(range(32))
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
TEMPLATE = Path(__file__).parents[1] / "rendering" / "templates" / "thinking.jinja"
PROMPT = "Run a shell command that writes amber-birch into the file out.txt, then stop."
COMMAND = "echo amber-birch > out.txt"
GIT = "git init -q . && git config user.email a@b.c && git config user.name t && git commit -q --allow-empty -m start"
Answer = Callable[[str], str]


def make_model(directory: Path) -> Path:
    """A small byte-level tokenizer; no weights are needed."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([Path(__file__).read_text()] * 4, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return directory


def tool_call(tool: str, **arguments: object) -> str:
    """A turn that thinks, talks and calls a tool."""
    call = json.dumps({"name": tool, "arguments": arguments})
    return f"<think>\nthe file is missing\n</think>\n\nI write the file.\n<tool_call>\n{call}\n</tool_call>"


def once(turn: str, last: str) -> Answer:
    """This turn first; the last one once a tool's output is there."""
    return lambda prompt: last if "<tool_response>" in prompt.rpartition("<|im_start|>user")[2] else turn


@dataclass
class Ran:
    """What is known of an attempt afterwards."""

    end: AgentEnd
    output: str
    written: bytes | None
    account: Path


class World:
    """A gateway with one rollout, and its record."""

    def __init__(self, store: Any, renderer: Any, directory: Path) -> None:
        self.store, self.renderer, self.directory, self.port = store, renderer, directory, 0
        self.answer: Answer = lambda prompt: "Done."
        self.engine = ScriptedEngine(self._ids, context=500_000, vocabulary=2000)

    def _ids(self, prompt: Sequence[int]) -> list[int]:
        text = self.answer(self.renderer.decode(list(prompt)))
        return [*self.renderer.codec.encode(text), *self.renderer.stop_token_ids]

    def calls(self) -> list[Call]:
        found: list[Call] = self.store.calls("r0", 1)
        return found

    def trace(self) -> Any:
        calls = self.calls()
        return build_trace(calls, [self.store.payload(call) for call in calls])

    def reconciled(self, ran: Ran) -> Any:
        return reconcile(self.trace(), read_account(ran.account))

    async def run(self, harness: str, *, installed: Path | None = None, timeout: float = 120, **settings: Any) -> Ran:
        """One attempt in a sandbox whose only way out is the gateway."""
        control = ControlConfig(launch="process", harness_directory=str(installed) if installed else "")
        launchers = Launchers((HarnessBinding(harness=harness, settings=settings),), control, self.directory)
        launcher, _ = launchers.find(self.store.rollout("r0").spec)
        root = tempfile.mkdtemp(prefix="wt-live-")
        limits = Limits(memory_mb=6144, processes=512, open_files=8192, file_mb=512)
        box_spec = SandboxSpec(sandbox_id="python", read_only=launcher.read_only, limits=limits)
        config = sandboxes.SandboxConfig(root=root, space_mb=1024)
        box = sandboxes.create(config, box_spec, gateway=("127.0.0.1", self.port))
        output = self.directory / "output"
        try:
            handle = await box.start()
            await box.exec(["/bin/sh", "-c", GIT], timeout=30)
            host, port = box.gateway
            attempt = AttemptSpec(
                rollout_id="r0",
                attempt=1,
                instruction=PROMPT,
                base_url=f"http://{host}:{port}/v1",
                api_key=mint(SECRET, "r0", 1),
                model="policy",
                workdir=handle.workdir,
                output_dir=str(output),
                timeout=timeout,
                settings=settings,
                sandbox=handle,
            )
            agent = await launcher.setup(attempt, box)
            end = await agent.run(timeout)
            written = await box.read(f"{handle.workdir}/out.txt")
        finally:
            await box.stop()
            shutil.rmtree(root, ignore_errors=True)
        kept = "".join(path.read_text(errors="replace") for path in output.rglob("*") if path.is_file())
        assert attempt.api_key not in kept
        return Ran(end=end, output=(output / "agent.log").read_text(), written=written, account=output / ACCOUNT)


@asynccontextmanager
async def serve_world(directory: Path, model: Path, harness: str) -> AsyncIterator[World]:
    """The world of one rollout of this harness."""
    renderer = load_renderer(model, RenderingConfig(template=str(TEMPLATE)))
    with open_store(directory / "store") as store:
        spec = RolloutSpec(
            rollout_id="r0",
            group_id="g",
            source="s",
            task_id="t",
            task_path="",
            harness=harness,
            sampling=Sampling(max_tokens=2000),
        )
        store.open_session(spec).result()
        made = World(store, renderer, directory)
        parts = Parts(store=store, engines=[made.engine], renderer=renderer, secret=SECRET)
        async with serving(GatewayConfig(), parts) as made.port:
            yield made
