"""Tokens trained per second of wall time in the three loops, on one recorded heavy-tailed workload.

Processes: the embedded engine; gateway and agents (learning_parts/sampler.py); the learner, here. Each loop trains the same
rollouts with the same number of places for them; the collocated and the asynchronous loop have more of them under way. All
three share this machine's cores, so the asynchronous loop's learner and engine compete for them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from learning_parts.sampler import Listening, SamplerSpec, workload
from whippletree.engines.connect import connect
from whippletree.engines.process import Ready
from whippletree.gateway.client import GatewayControl
from whippletree.gateway.keys import control_key, load_secret
from whippletree.learner.config import LearnerConfig
from whippletree.learner.learner import Learner
from whippletree.learner.tiny import TinyConfig, train_tokenizer
from whippletree.loop.config import LoopSection, RunConfig, SamplingSection, SourceSection
from whippletree.loop.fleet import Fleet
from whippletree.loop.groups import SourceTasks
from whippletree.loop.learning import LOOPS
from whippletree.loop.metrics import Log
from whippletree.loop.run import Run
from whippletree.loop.sources import TrailTasks
from whippletree.store import open_store

HERE = Path(__file__).resolve().parent.parent
TASKS = SourceTasks(name="recorded", tasks=tuple((f"t{n}", f"/t/{n}") for n in range(64)), harness="recorded")
GROUPS, SIZE = 4, 4


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this part."""
    parser.add_argument("--loop-steps", type=int, default=10, help="loops: updates of each loop")
    parser.add_argument("--tool-seconds", type=float, default=0.3, help="loops: median seconds of a tool")


def run(arguments: argparse.Namespace) -> dict[str, float]:
    """Train in each loop and compare."""
    with tempfile.TemporaryDirectory(prefix="bench-loops-") as name:
        model = make_model(Path(name) / "model")
        rates = {kind: rate(kind, model, Path(name) / kind, arguments) for kind in LOOPS}
    return {
        "collocated_over_sync": round(rates["collocated"] / rates["synchronous"], 2),
        "async_over_sync": round(rates["asynchronous"] / rates["synchronous"], 2),
    }


def make_model(directory: Path) -> Path:
    """A Qwen3 of random weights with the demo's tokenizer."""
    import torch
    import transformers

    tokenizer = train_tokenizer(TinyConfig())
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(str(directory))
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    return directory


def rate(kind: str, model: Path, directory: Path, arguments: argparse.Namespace) -> float:
    """Tokens trained per second, from the first rollout to the last weights."""
    directory.mkdir()
    loop = LoopSection(
        kind=kind,  # type: ignore[arg-type]
        steps=arguments.loop_steps,
        groups_per_step=GROUPS,
        group_size=SIZE,
        groups_in_flight=3 * GROUPS,
        eval_every=0,
    )
    config = RunConfig(
        sources=[SourceSection(name=TASKS.name, tasks=TrailTasks())],
        loop=loop,
        sampling=SamplingSection(max_tokens=32),
        learner=LearnerConfig(learning_rate=1e-4, token_budget=2048, checkpoint_every=10**6),
    )
    with processes(model, directory, arguments.tool_seconds) as (engine_url, gateway_url):
        fleet = Fleet(
            GatewayControl(gateway_url, control_key(load_secret(directory / "secret"))), [connect("embedded", engine_url)]
        )
        with open_store(directory / "store", instance="learner") as store:
            training = Run(
                config,
                directory,
                store=store,
                learner=Learner(model, config.learner, temperature=1.0, run_steps=loop.steps),
                fleet=fleet,
                sources=[TASKS],
                heldout=[],
                model_directory=model,
                weights_directory=directory / "weights",
            )
            training.restore()
            started = time.perf_counter()
            LOOPS[kind](training)
            seconds = time.perf_counter() - started
            turns = sorted(len(workload(rollout.spec.rollout_id, 1.0)) for rollout in store.rollouts())
        fleet.close()
    lines = Log(directory).steps()
    tokens = sum(line.tokens_trained for line in lines)
    swept = sum(line.tokens_left_out.get("stale", 0) for line in lines)
    waited = sum(line.seconds_collect for line in lines) / seconds
    print(
        f"loops: {kind:12s} {tokens:6d} tokens trained in {seconds:6.1f} s, {swept} swept, staleness up to"
        f" {max(line.staleness_max for line in lines)}; {waited:.0%} of the time waiting for rollouts; turns: median"
        f" {turns[len(turns) // 2]}, most {turns[-1]}",
        flush=True,
    )
    return tokens / seconds


@contextmanager
def processes(model: Path, directory: Path, seconds: float) -> Iterator[tuple[str, str]]:
    """Engine, gateway and agents; the URLs of the first two."""
    ready, listening, spec = (directory / name for name in ("engine.json", "gateway.json", "sampler.json"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    engine = [sys.executable, "-m", "whippletree.engines.embedded", "--model", str(model), "--context", "1024"]
    started = [subprocess.Popen([*engine, "--ready-file", str(ready), "--exit-with-parent"], env=environment)]
    try:
        address = msgspec.json.decode(wait(ready, started), type=Ready)
        engine_url = f"http://{address.host}:{address.port}"
        load_secret(directory / "secret")
        wanted = SamplerSpec(
            directory=str(directory), model=str(model), engine_url=engine_url, ready=str(listening), seconds=seconds
        )
        spec.write_bytes(msgspec.json.encode(wanted))
        started.append(subprocess.Popen([sys.executable, "-m", "learning_parts.sampler", str(spec)], cwd=HERE, env=environment))
        yield engine_url, msgspec.json.decode(wait(listening, started), type=Listening).url
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(30)


def wait(file: Path, started: list[subprocess.Popen[bytes]]) -> bytes:
    """The file's content, once it is there."""
    deadline = time.monotonic() + 120
    while not file.is_file():
        if any(process.poll() is not None for process in started) or time.monotonic() > deadline:
            raise SystemExit(f"{file.name} did not appear: a process of the benchmark did not start")
        time.sleep(0.05)
    return file.read_bytes()
