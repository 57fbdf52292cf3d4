"""A gateway with a scripted engine and one rollout, and real agents launched at it as attempts launch them."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from whippletree import sandboxes
from whippletree.control.launch import ProcessLauncher
from whippletree.control.policy import AgentEnd
from whippletree.control.records import ACCOUNT
from whippletree.engines.scripted import ScriptedEngine
from whippletree.gateway.client import GatewayControl
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import control_key, mint
from whippletree.gateway.server import Parts, serving
from whippletree.harnesses import load_harness
from whippletree.protocols import AttemptSpec, ConfiguredHarness, Harness, Limits, SandboxSpec, Store
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.store import open_store
from whippletree.traces import Reconciliation, Trace, build_trace, read_account, reconcile
from whippletree.types import Call, RolloutSpec, Sampling

SECRET = bytes(range(32))
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
TEMPLATE = Path(__file__).parents[1] / "rendering" / "templates" / "thinking.jinja"  # drops old thinking, lists tools whole
COMMAND = "echo amber-birch > out.txt"
PROMPT = "Run a shell command that writes amber-birch into the file out.txt, then stop."
FINAL = "Done, the file is written."
LIMITS = Limits(memory_mb=6144, processes=512, open_files=8192, file_mb=512)


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


def turn(text: str, *calls: tuple[str, dict[str, object]], thought: str = "") -> str:
    """A turn of the model as it writes it."""
    marks = "".join(f"\n<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>" for name, given in calls)
    return (f"<think>\n{thought}\n</think>\n\n" if thought else "") + text + marks


@dataclass
class Told:
    """How an attempt ended, what it left, and what its account and the capture say of each other."""

    end: AgentEnd
    written: bytes | None
    calls: list[Call]
    trace: Trace
    account: Reconciliation | None
    log: str
    kept: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        nodes = [(node.call.dialect, node.role, node.call.prefix_break, node.call.error) for node in self.trace.nodes]
        found = self.account.findings if self.account else None
        return f"{self.log[-2000:]}\n{self.end}\n{nodes}\n{found}\n{self.kept}"


class World:
    """A gateway with one rollout, and its record."""

    def __init__(self, store: Store, renderer: Any, harnesses: Path, context: int) -> None:
        self.store, self.renderer, self.harnesses, self.port = store, renderer, harnesses, 0
        self.engine = ScriptedEngine(self._sample, context=context, vocabulary=2000)
        self.answer: Callable[[str], str] = lambda text: FINAL
        self.prompts: list[str] = []

    def _sample(self, prompt: Sequence[int]) -> list[int]:
        text = self.renderer.decode(list(prompt))
        self.prompts.append(text)
        return [*self.renderer.codec.encode(self.answer(text)), *self.renderer.stop_token_ids]

    def act(self, harness: Harness) -> None:
        """Answer with a call of the shell tool, then with plain text; with text too where no tools are offered."""
        facts = harness.facts
        arguments = {facts.shell_argument: COMMAND, **facts.shell_extra}
        call = turn("I write the file.", (facts.shell_tool, arguments), thought="the file is missing")

        def answer(text: str) -> str:
            plain = f'"{facts.shell_tool}"' not in text or "<tool_response>" in text.rpartition("<|im_start|>user")[2]
            return FINAL if plain else call

        self.answer = answer

    async def run(self, name: str, directory: Path, *, prompt: str = PROMPT, timeout: float = 200, **settings: object) -> Told:
        """Run an agent by its adapter and the process launcher, in a sandbox whose only way out is the gateway."""
        harness = load_harness(name, self.harnesses)
        launcher = ProcessLauncher(harness.configured(settings) if isinstance(harness, ConfiguredHarness) else harness)
        root = tempfile.mkdtemp(prefix="wt-live-")
        spec = SandboxSpec(sandbox_id=name, read_only=launcher.read_only, limits=LIMITS)
        box = sandboxes.create(sandboxes.SandboxConfig(root=root, space_mb=1024), spec, gateway=("127.0.0.1", self.port))
        try:
            handle = await box.start()
            await box.exec(
                ["bash", "-c", "git init -q . && git -c user.email=a@b.c -c user.name=t commit -q --allow-empty -m s"],
                timeout=30,
            )
            host, port = box.gateway
            attempt = AttemptSpec(
                rollout_id="r0",
                attempt=1,
                instruction=prompt,
                base_url=f"http://{host}:{port}/v1",
                api_key=mint(SECRET, "r0", 1),
                model="policy",
                workdir=handle.workdir,
                output_dir=str(directory / "attempt"),
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
        control = GatewayControl(f"http://127.0.0.1:{self.port}", control_key(SECRET))
        await control.seal_async("r0", 1)  # as the end of an attempt does: what was delivered is on record then
        return self._told(end, written, directory / "attempt")

    def _told(self, end: AgentEnd, written: bytes | None, output: Path) -> Told:
        calls = self.store.calls("r0", 1)
        trace = build_trace(calls, [self.store.payload(call) for call in calls])
        account = reconcile(trace, read_account(output / ACCOUNT)) if (output / ACCOUNT).is_file() else None
        kept = sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file())
        return Told(end, written, calls, trace, account, (output / "agent.log").read_text(), kept)


@asynccontextmanager
async def living(directory: Path, model: Path, harnesses: Path, *, context: int = 500_000) -> AsyncIterator[World]:
    """A world with its gateway serving."""
    renderer = load_renderer(model, RenderingConfig(template=str(TEMPLATE)))
    with open_store(directory / "store") as store:
        sampling = Sampling(max_tokens=2000)
        spec = RolloutSpec(rollout_id="r0", group_id="g", source="s", task_id="t", task_path="", harness="h", sampling=sampling)
        store.open_session(spec).result()
        made = World(store, renderer, harnesses, context)
        async with serving(
            GatewayConfig(), Parts(store=store, engines=[made.engine], renderer=renderer, secret=SECRET)
        ) as made.port:
            yield made
