"""Real, unmodified coding agents against the gateway and a scripted engine, in sandboxes whose only way out is the gateway.

The engine first answers with a call of the agent's shell tool, then with plain text. What is looked at is the record: every
reply delivered, the second call going on from the first one's ids, one sample with both turns, side calls kept apart.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from launches import AGENTS, HOME, LAUNCHES, Launch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from whippletree import sandboxes
from whippletree.engines.scripted import Faults, ScriptedEngine
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import mint
from whippletree.gateway.server import Parts, serving
from whippletree.harnesses import load_harness
from whippletree.protocols import AttemptSpec, Limits, SandboxSpec
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.store import open_store
from whippletree.traces import build_samples, build_trace
from whippletree.types import Call, RolloutSpec, Sampling

INSTALLED = os.environ.get("WHIPPLETREE_HARNESSES", "")
SECRET = bytes(range(32))
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
TEMPLATE = Path(__file__).parents[1] / "rendering" / "templates" / "thinking.jinja"  # drops old thinking, lists tools whole
COMMAND = "echo amber-birch > out.txt"
PROMPT = "Run a shell command that writes amber-birch into the file out.txt, then stop."

pytestmark = [
    pytest.mark.harness,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not INSTALLED, reason="set WHIPPLETREE_HARNESSES to where `make env-harnesses` put the agents"),
]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level tokenizer; no weights are needed."""
    directory = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([Path(__file__).read_text()] * 4, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return directory


class World:
    """A gateway with one rollout, and its record."""

    def __init__(self, store: Any, renderer: Any) -> None:
        self.store, self.renderer, self.port = store, renderer, 0
        self.engine = ScriptedEngine(self.answer, context=500_000, vocabulary=2000)
        self.launch: Launch

    def calls(self) -> list[Call]:
        found: list[Call] = self.store.calls("r0", 1)
        return found

    def answer(self, prompt: Sequence[int]) -> list[int]:
        """A call of the shell tool first, plain text once its output is there; text too where no tools are offered."""
        call = json.dumps({"name": self.launch.tool, "arguments": self.launch.arguments(COMMAND)})
        text = self.renderer.decode(list(prompt))
        plain = f'"{self.launch.tool}"' not in text or "<tool_response>" in text.rpartition("<|im_start|>user")[2]
        first = f"<think>\nthe file is missing\n</think>\n\nI write the file.\n<tool_call>\n{call}\n</tool_call>"
        return [*self.renderer.codec.encode("Done, the file is written." if plain else first), *self.renderer.stop_token_ids]


@pytest.fixture
async def world(tmp_path: Path, model_dir: Path) -> AsyncIterator[World]:
    renderer = load_renderer(model_dir, RenderingConfig(template=str(TEMPLATE)))
    with open_store(tmp_path / "store") as store:
        spec = RolloutSpec(
            rollout_id="r0",
            group_id="g",
            source="s",
            task_id="t",
            task_path="",
            harness="h",
            sampling=Sampling(max_tokens=2000),
        )
        store.open_session(spec).result()
        made = World(store, renderer)
        parts = Parts(store=store, engines=[made.engine], renderer=renderer, secret=SECRET)
        async with serving(GatewayConfig(), parts) as made.port:
            yield made


async def run(launch: Launch, world: World, directory: Path, timeout: float = 120) -> tuple[Any, bytes | None]:
    """Run an agent in a sandbox; how it ended, and the file that its command was to write."""
    argv, environment, files = launch.start(mint(SECRET, "r0", 1), PROMPT)
    source = directory / "files"
    copied = []
    for number, (path, text) in enumerate(files.items()):
        (source / str(number)).mkdir(parents=True)
        (source / str(number) / Path(path).name).write_text(text)
        copied.append((str(source / str(number)), str(Path(path).parent)))
    root = tempfile.mkdtemp(prefix="wt-live-")
    spec = SandboxSpec(
        sandbox_id=launch.name,
        files=tuple(copied),
        read_only=((str(Path(INSTALLED) / (launch.folder or launch.name)), f"{AGENTS}/{launch.folder or launch.name}"),),
        environment={"HOME": HOME, "TERM": "dumb", "LANG": "C.UTF-8"},
        limits=Limits(memory_mb=6144, processes=512, open_files=8192, file_mb=512),
    )
    config = sandboxes.SandboxConfig(root=root, space_mb=1024)
    box = sandboxes.create(config, spec, gateway=("127.0.0.1", world.port))
    try:
        await box.start()
        setup = "git init -q . && git -c user.email=a@b.c -c user.name=t commit -q --allow-empty -m start"
        await box.exec(["bash", "-c", setup], timeout=30)
        result = await box.exec(argv, timeout=timeout, environment=environment)
        return result, await box.read(f"{spec.workdir}/out.txt")
    finally:
        await box.stop()
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("name", list(LAUNCHES))
async def test_an_unmodified_agent_is_captured_whole(name: str, world: World, tmp_path: Path):
    launch = LAUNCHES[name]
    world.launch = launch
    result, written = await run(launch, world, tmp_path)
    calls = world.calls()
    trace = build_trace(calls, [world.store.payload(call) for call in calls])
    told = f"{result.output[-2000:]}\n{[(n.call.dialect, n.role, n.call.prefix_break, n.call.error) for n in trace.nodes]}"
    assert written == b"amber-birch\n", told
    assert result.exit_code == 0, told
    main = [node.call for node in trace.nodes if node.role == "main"]
    side = [node.call for node in trace.nodes if node.role == "side"]
    assert len(main) == 2 and len(main) + len(side) == len(calls) and bool(side) == launch.side_calls, told
    assert all(call.dialect == launch.dialect and call.delivered and not call.error for call in calls), told
    assert main[1].parent_call_id == main[0].call_id and main[1].prefix_break == "", told
    samples = build_samples(trace, world.store.rollout("r0").spec)
    (sample,) = [sample for sample in samples if main[0].call_id in sample.call_ids]
    assert sample.call_ids == (main[0].call_id, main[1].call_id)
    assert int(sample.trained.sum()) == main[0].sampled_tokens + main[1].sampled_tokens


@pytest.mark.parametrize("name", ["claude-code", "codex", "pi"])
async def test_an_agent_survives_an_engine_that_fails_once_and_then_breaks_a_stream(name: str, world: World, tmp_path: Path):
    launch = LAUNCHES[name]
    world.launch = launch
    world.engine.faults = Faults(unavailable=1, first_token_seconds=0.5)
    result, written = await run(launch, world, tmp_path)
    assert (result.exit_code, written) == (0, b"amber-birch\n"), result.output[-2000:]
    assert [call.finish_reason for call in world.calls() if call.role == "main"] == ["tool_calls", "stop"]


async def test_mini_swe_agent_is_captured_whole(world: World, tmp_path: Path):
    """The one harness of these that is a Python package, started as its adapter starts it."""
    world.launch = Launch("mini-swe-agent", "chat", "bash", lambda key, prompt: ([], {}, {}))
    harness = load_harness("mini-swe-agent")
    root = tempfile.mkdtemp(prefix="wt-live-")
    limits = Limits(memory_mb=2048, processes=256, open_files=4096, file_mb=256)
    spec = SandboxSpec(sandbox_id="mini", read_only=harness.read_only, limits=limits)
    box = sandboxes.create(sandboxes.SandboxConfig(root=root), spec, gateway=("127.0.0.1", world.port))
    try:
        handle = await box.start()
        host, port = box.gateway
        attempt = AttemptSpec(
            rollout_id="r0",
            attempt=1,
            instruction=PROMPT,
            base_url=f"http://{host}:{port}/v1",
            api_key=mint(SECRET, "r0", 1),
            model="policy",
            workdir=handle.workdir,
            output_dir=str(tmp_path),
            settings={"step_limit": 4},
            sandbox=handle,
        )
        plan = harness.plan(attempt)
        for number, (path, text) in enumerate(plan.files):
            (tmp_path / f"file-{number}").write_text(text)
            await box.put(tmp_path / f"file-{number}", path)
        done = await box.exec(plan.argv, timeout=120, environment=plan.environment, cwd=handle.workdir)
        written = await box.read(f"{handle.workdir}/out.txt")
    finally:
        await box.stop()
        shutil.rmtree(root, ignore_errors=True)
    assert written == b"amber-birch\n", done.output[-2000:]
    calls = world.calls()
    assert len(calls) >= 2 and all(call.delivered and call.dialect == "chat" for call in calls)
    assert (calls[1].parent_call_id, calls[1].prefix_break) == (calls[0].call_id, "")
