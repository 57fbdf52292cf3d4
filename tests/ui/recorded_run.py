"""A run directory as the processes of a run leave it: real store, real dialect, real metrics; only the model is made up."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from whippletree.configuration import dump
from whippletree.gateway.deltas import pack
from whippletree.gateway.dialects import Target
from whippletree.gateway.dialects.chat import ChatDialect
from whippletree.gateway.digest import fields_of
from whippletree.gateway.keys import load_secret
from whippletree.loop.config import LoopSection, RunConfig, SourceSection
from whippletree.loop.evaluation import Heldout, evaluation_specs, summarise
from whippletree.loop.layout import Layout, Services
from whippletree.loop.learning import summarise as summarise_run
from whippletree.loop.metrics import Log, StepMetrics
from whippletree.loop.sources import TrailTasks
from whippletree.protocols import AttemptOutcome
from whippletree.store import open_store
from whippletree.store.sqlite import SqliteStore
from whippletree.types import (
    Attempt,
    Call,
    CallPayload,
    CallTimes,
    Cause,
    CauseClass,
    ParsedMessage,
    Phase,
    Rollout,
    RolloutSpec,
    Sampling,
    ToolCall,
    VerifierResult,
    VersionSpan,
)

DIALECT = ChatDialect()
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
START = 1_700_000_000.0
EVIL = "<script>document.title = 'owned'</script>\x1b]0;owned\x07\x1b[2J\u202e[bold]"
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
NAMES = ("amber", "birch", "cedar", "delta", "ember")


@dataclass
class Story:
    """One made-up attempt: what the model did, call by call, and how it ended."""

    commands: list[str]
    outputs: list[str]
    reward: float | None
    text: str = ""
    times: list[CallTimes] = field(default_factory=list)


def story(depth: int, solved: bool, text: str = "") -> Story:
    """Follow a trail to its end and submit, or give up after the first file."""
    names = NAMES[: depth if solved else 1]
    outputs = [f'{{"next": "{name}"}}' for name in names[1:]] + ['{"code": "17"}' if solved else '{"next": "birch"}']
    commands = [f"cat {name}" for name in names] + [f"submit {17 if solved else 42}"]
    return Story(commands=commands, outputs=[*outputs, "submitted"], reward=float(solved), text=text)


def write_call(store: SqliteStore, attempt: Attempt, story: Story, index: int, version: int, now: float) -> Call:
    """Record call `index` of an attempt, stored as the gateway stores it."""
    rollout = attempt.rollout_id
    messages: list[dict] = [
        {"role": "system", "content": "Work with the bash tool."},
        {"role": "user", "content": "start at amber and submit the code"},
    ]
    for number in range(index):
        function = {"name": "bash", "arguments": msgspec.json.encode({"command": story.commands[number]}).decode()}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": story.text or None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": story.outputs[number]})
    body = msgspec.json.encode({"model": "policy", "messages": messages, "tools": TOOLS})
    base, skeleton = "", None
    if index:
        base = f"c-{rollout}-{attempt.attempt}-{index - 1}"
        earlier = msgspec.json.encode({"model": "policy", "messages": messages[:-2], "tools": TOOLS})
        _, skeleton = pack(earlier, fields_of(earlier), None, "")
    times = (
        story.times[index]
        if story.times
        else CallTimes(received=now, submitted=now + 0.02, first_token=now + 0.05, finished=now + 0.2)
    )
    call = Call(
        call_id=f"c-{rollout}-{attempt.attempt}-{index}",
        rollout_id=rollout,
        attempt=attempt.attempt,
        index=index,
        digest=f"{rollout}-{index}",
        prompt_tokens=12 + 14 * index,
        sampled_tokens=6,
        finish_reason="tool_calls",
        times=times,
        sampling=Sampling(),
        parent_call_id=base,
        base_call_id=base,
        messages=len(messages),
        prefix_break="" if index else "first",
        versions=(VersionSpan(start=0, policy_version=version),),
        cached_tokens=12 * index,
    )
    arguments = msgspec.json.encode({"command": story.commands[index]}).decode()
    said = ParsedMessage(
        content=story.text,
        tool_calls=(ToolCall(id=f"call_{index}", name="bash", arguments=arguments),),
        finish_reason="tool_calls",
    )
    known = len(messages) - 1 if index else 0  # the base's messages and its reply
    payload = CallPayload(
        prompt_delta=np.arange(12 if index == 0 else 8, dtype=np.int32),
        sampled_ids=np.arange(20, 26, dtype=np.int32),
        logprobs=np.linspace(-1.5, -0.01, 6, dtype=np.float32),
        request_json=pack(body, fields_of(body), skeleton, base)[0],
        messages_json=msgspec.json.encode(DIALECT.parse(body, Target()).messages[known:]),
        reply_json=msgspec.json.encode(said),
    )
    return store.record_call(call, payload).result()


def finish(store: SqliteStore, attempt: Attempt, story: Story, now: float) -> None:
    """Close an attempt with its phases."""
    agent = 0.3 * len(story.commands) + 0.1
    phases = tuple(
        Phase(name=name, started=now, seconds=seconds)
        for name, seconds in (
            ("boot", 0.05),
            ("setup", 0.02),
            ("agent", agent),
            ("seal", 0.01),
            ("verify", 0.08),
            ("cleanup", 0.04),
        )
    )
    result, cause = VerifierResult(reward=story.reward, output=f"reward {story.reward}\n"), None
    if story.reward is None:
        cause = Cause(cause=CauseClass.SANDBOX, phase="boot", message=f"bwrap said {EVIL}", next_step="run `whippletree check`")
        result = None
    done = msgspec.structs.replace(
        attempt, finished=now + agent, phases=phases, result=result, cause=cause, exit_status="Submitted"
    )
    store.seal(attempt.rollout_id, attempt.attempt).result()
    store.finish(AttemptOutcome(attempt=done)).result()


def play(store: SqliteStore, specs: list[RolloutSpec], stories: list[Story], version: int, now: float = START) -> list[Rollout]:
    """Run these rollouts to their ends, as a controller and a gateway would record them."""
    store.create_rollouts(specs).result()
    attempts = {attempt.rollout_id: attempt for attempt in store.claim("controller/host-0", len(specs)).result()}
    for spec, told in zip(specs, stories, strict=True):
        attempt = attempts[spec.rollout_id]
        for index in range(len(told.commands)):
            call = write_call(store, attempt, told, index, version, now + 0.3 * index)
            store.mark_delivered(call.call_id).result()
        finish(store, attempt, told, now)
    return [store.rollout(spec.rollout_id) for spec in specs]


def step_metrics(step: int, steps: int, draw: random.Random, **fields: object) -> StepMetrics:
    """A plausible line of metrics.jsonl."""
    progress = step / max(1, steps - 1)
    given = {
        "step": step, "policy_version": step + 1, "time": START + 10 + 5.0 * (step + 1), "rollouts": 64,
        "failed": int(step == 7), "calls": 190, "samples": 64, "loss": 0.01, "clip_fraction": 0.012, "ratio_max": 1.4,
        "reward_mean": min(1.0, max(0.0, 0.25 + 0.6 * progress**0.7 + draw.uniform(-0.09, 0.09))),
        "turns_mean": 2.2 + 0.8 * progress + draw.uniform(-0.1, 0.1), "tokens_trained": 1500 + draw.randrange(200),
        "groups_without_signal": 1 + int(4 * progress), "staleness_mean": 0.4 + draw.random() / 5, "staleness_max": 2,
        "grad_norm": 0.6 + draw.random() / 4, "logprob_max_abs_diff": draw.uniform(2e-6, 9e-6),
        "logprob_correlation": 0.9999999, "weight_check_diff": draw.uniform(1e-6, 4e-6), "row_fill": 0.93,
        "seconds_collect": 4.2, "seconds_update": 0.6, "seconds_publish": 0.15,
    }  # fmt: skip
    return StepMetrics(**(given | fields))


def new_run(directory: Path, *, steps: int = 4, **loop: object) -> tuple[RunConfig, Layout]:
    """What `whippletree train` writes before it starts anything."""
    source = SourceSection(name="trail", tasks=TrailTasks())
    config = RunConfig(sources=[source], loop=LoopSection(steps=steps, **loop))
    layout = Layout(directory)
    directory.mkdir(parents=True, exist_ok=True)
    layout.config.write_text(dump(config), encoding="utf-8")
    load_secret(layout.secret)
    layout.write_services(
        Services(
            gateway_url="http://127.0.0.1:40001",
            engine_url="http://127.0.0.1:40002",
            model_directory="/cache/tiny",
            isolation="Each attempt has its own root, processes and network.",
            started=START,
        )
    )
    return config, layout


def evaluate(
    store: SqliteStore, log: Log, *, step: int, tasks: int, share: float, draw: random.Random, depths: int = 3
) -> None:
    """Evaluate made-up held-out tasks, of which about `share` pass, and append the line."""
    heldout = [
        Heldout(
            source="trail",
            task_id=f"trail-{number:03d}",
            task_path=f"/tasks/trail-{number:03d}",
            harness="mini-swe-agent",
            labels={"difficulty": f"depth {1 + number % depths}, decoys {1 + number % 2}"},
        )
        for number in range(tasks)
    ]
    specs = evaluation_specs(heldout, step=step, samples=1, sampling=Sampling(), max_attempts=3)
    stories = [story(1 + n % depths, draw.random() < share ** (0.6 + 0.4 * (n % depths))) for n in range(tasks)]
    rollouts = play(store, specs, stories, version=step)
    line = summarise(store, rollouts, step=step, policy_version=step, seconds=6.5)
    log.append("eval", msgspec.structs.replace(line, time=START + 10 + 5.0 * step))


def record(directory: Path, *, steps: int = 4, tasks: int = 6, depths: int = 3, complete: bool = True, seed: int = 3) -> Layout:
    """A whole run."""
    draw = random.Random(seed)
    config, layout = new_run(directory, steps=steps)
    log = Log(directory)
    with open_store(layout.store, instance="test") as store:
        evaluate(store, log, step=0, tasks=tasks, share=0.3, draw=draw, depths=depths)
        for step in range(steps):
            log.append("metrics", step_metrics(step, steps, draw))
            if step + 1 == steps // 2:
                evaluate(store, log, step=step + 1, tasks=tasks, share=0.6, draw=draw, depths=depths)
        evaluate(store, log, step=steps, tasks=tasks, share=0.92, draw=draw, depths=depths)
        if complete:
            summary = summarise_run(config, layout.read_services(), store, log, complete=True)
            layout.summary.write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
    return layout


def train_spec(rollout_id: str, **fields: object) -> RolloutSpec:
    """One training rollout."""
    given = {
        "group_id": "g00000",
        "source": "trail",
        "task_id": "trail-000",
        "task_path": "/tasks/trail-000",
        "harness": "mini-swe-agent",
    }
    return RolloutSpec(rollout_id=rollout_id, **(given | fields))


def write_tokenizer(directory: Path) -> Path:
    """A tokenizer of bytes with the marks that the shipped template needs, in a model directory."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["amber"], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}', encoding="utf-8")
    return directory


def configure(layout: Layout, *changes: tuple[str, str]) -> None:
    """Change lines of the run's config.toml. Each must be there once, or stand below the "[table] " that is named before it."""
    text = layout.config.read_text(encoding="utf-8")
    for old, new in changes:
        table, line = old.split("] ", 1) if old.startswith("[") else ("", old)
        start = text.index(f"\n{table}]\n") if table else 0
        assert f"\n{line}\n" in text[start:], old
        assert table or text.count(f"\n{line}\n") == 1, old
        place = text.index(f"\n{line}\n", start) + 1
        text = text[:place] + new + text[place + len(line) :]
    layout.config.write_text(text, encoding="utf-8")
