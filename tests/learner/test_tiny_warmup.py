"""The warm-up: its sequences are the gateway's, and it teaches what it is meant to."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from whippletree.gateway.dialects import Target
from whippletree.gateway.dialects.chat import ChatDialect
from whippletree.learner.tiny import TinyConfig, build_tiny
from whippletree.learner.transcripts import TranscriptFormat, transcripts
from whippletree.learner.warmup import Examples, WarmupConfig, warm_up
from whippletree.protocols import Recorded
from whippletree.rendering import ChatRenderer
from whippletree.rendering.renderer import load_renderer
from whippletree.tasks.demonstrator import Turn, run_command, sloppy_turns
from whippletree.tasks.trail import Trail, TrailStream
from whippletree.types import Message, ToolCall, ToolSpec

CONFIG = TinyConfig(warmup=WarmupConfig(steps=0))
FAMILY = CONFIG.family
STREAM = TrailStream(FAMILY)
BASH = ToolSpec(name="bash", description="Execute a bash command")


def transcript(trail: Trail, turns: list[Turn], system: str) -> list[Message]:
    (only,) = transcripts(trail, turns, TranscriptFormat(system=system))
    return list(only.messages)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model without any warm-up."""
    return build_tiny(tmp_path_factory.mktemp("cache"), CONFIG, seed=1)


def examples(directory: Path, config: WarmupConfig | None = None, seed: int = 1) -> Examples:
    return Examples(directory, FAMILY, CONFIG.transcript_formats, config or WarmupConfig(), seed)


def record(renderer: ChatRenderer, prompt: list[int], sampled: list[int], messages: int) -> Recorded:
    """A call as the gateway hands it to the bridge."""
    return Recorded(
        prompt=np.asarray(prompt, dtype=np.int32),
        sampled=np.asarray(sampled, dtype=np.int32),
        text=renderer.to_bytes(prompt + sampled),
        messages=messages,
    )


def check_against_gateway(directory: Path, messages: list[Message], said: list[str]) -> None:
    """`said`: the text of each assistant turn. Plays the gateway's part: render, sample, bridge; compares with the warm-up."""
    renderer, example = load_renderer(directory), examples(directory).encode(messages, [BASH])
    recorded: Recorded | None = None
    trained: list[int] = []
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    for index, text in zip(turns, said, strict=True):
        prompt = renderer.render(messages[:index], [BASH])
        if recorded is not None:
            rest = renderer.bridge(recorded, messages[:index], [BASH])
            assert rest is not None
            assert [*recorded.prompt.tolist(), *recorded.sampled.tolist(), *rest] == prompt
        assert example.ids[: len(prompt)] == prompt
        sampled = renderer.codec.encode(text + "<|im_end|>")
        trained += range(len(prompt), len(prompt) + len(sampled))
        recorded = record(renderer, prompt, sampled, index + 1)
        assert example.ids[: len(prompt + sampled)] == prompt + sampled
    assert [place for place, flag in enumerate(example.trained) if flag] == trained


def sampled_text(command: str) -> str:
    return '<tool_call>{"name": "bash", "arguments": ' + json.dumps({"command": command}) + "}</tool_call>"


def test_ids_are_those_that_the_gateway_feeds_and_records(fresh):
    rng = random.Random(0)
    for index in range(60):
        trail = STREAM.train(index)
        turns = sloppy_turns(trail, FAMILY, rng, 0.7)
        check_against_gateway(fresh, transcript(trail, turns, CONFIG.system), [sampled_text(turn.command) for turn in turns])


def test_a_sampled_turn_parses_into_the_message_that_the_warm_up_renders(fresh):
    renderer = load_renderer(fresh)
    parser = renderer.parser([BASH])
    parser.feed(renderer.codec.encode(sampled_text("cat amber") + "<|im_end|>"))
    _, parsed = parser.finish("stop")
    assert (parsed.content, parsed.malformed, parsed.finish_reason) == ("", "", "tool_calls")
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("bash", '{"command": "cat amber"}')]


def test_ids_are_those_of_mini_swe_agents_own_messages(fresh, tmp_path):
    """The unmodified agent loop, its own message formatting and its local environment, over files of a task; only the model's
    replies are given. What it sends goes through the gateway's own reader."""
    default = pytest.importorskip("minisweagent.agents.default")
    local = pytest.importorskip("minisweagent.environments.local")
    formatting = pytest.importorskip("minisweagent.models.utils.actions_toolcall")
    trail = STREAM.train(2)
    for name, text in trail.files().items():
        (tmp_path / name).write_text(text)
    commands = [f"cat {name}" for name in trail.names] + ["echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]
    sent: list[list[dict]] = []

    class GivenModel:
        config = None

        def query(self, messages):
            sent.append([{key: value for key, value in message.items() if key != "extra"} for message in messages])
            command = commands[len(sent) - 1]
            call = {"id": f"call_{len(sent)}", "type": "function", "index": 0}
            call["function"] = {"name": "bash", "arguments": json.dumps({"command": command})}
            extra = {"actions": [{"command": command, "tool_call_id": call["id"]}], "cost": 0.0}
            return {"role": "assistant", "content": None, "tool_calls": [call], "extra": extra}

        def format_message(self, **kwargs):
            return kwargs

        def format_observation_messages(self, message, outputs, template_vars=None):
            return formatting.format_toolcall_observation_messages(
                actions=message["extra"]["actions"], outputs=outputs, observation_template="{{output.output}}"
            )

        def get_template_vars(self):
            return {}

        def serialize(self):
            return {}

    agent = default.DefaultAgent(
        GivenModel(),
        local.LocalEnvironment(cwd=str(tmp_path)),
        system_template=CONFIG.system,
        instance_template="{{task}}",
        step_limit=9,
    )
    assert agent.run(trail.instruction)["exit_status"] == "Submitted"
    body = {"model": "policy", "messages": sent[-1], "tools": [formatting.BASH_TOOL]}
    request = ChatDialect().parse(json.dumps(body).encode(), Target())
    assert [tool.name for tool in request.tools] == [BASH.name]
    messages = [
        *request.messages,
        Message(role="assistant", tool_calls=(ToolCall(id="x", name="bash", arguments='{"command": "x"}'),)),
    ]
    check_against_gateway(fresh, messages, [*map(sampled_text, commands[:-1]), sampled_text("x")])
    assert load_renderer(fresh).render(request.messages, request.tools) == load_renderer(fresh).render(request.messages, [BASH])


def test_only_what_the_assistant_says_is_trained(fresh):
    source, codec = examples(fresh), load_renderer(fresh).codec
    for _ in range(50):
        example = source.draw()
        said = [text.partition("<|im_start|>assistant\n")[2] for text in codec.decode(example.ids).split("<|im_end|>")]
        trained = codec.decode([token for token, flag in zip(example.ids, example.trained, strict=True) if flag])
        assert trained == "".join(f"{text}<|im_end|>" for text in said if text)


def test_an_attempt_is_short(fresh):
    trail = next(STREAM.train(index) for index in range(9) if STREAM.train(index).depth == 3)
    turns = sloppy_turns(trail, FAMILY, random.Random(0), 1.0)
    assert len(examples(fresh).encode(transcript(trail, turns, CONFIG.system), [BASH]).ids) < 80


def test_held_out_tasks_are_never_shown(fresh):
    """Three names and ten codes leave so few tasks that held-out ones would show up if they could."""
    family = msgspec.structs.replace(FAMILY, names=3, codes=10, depths=(1,), decoys=(0,), heldout=15)
    source = Examples(fresh, family, CONFIG.transcript_formats, WarmupConfig(copy_share=0.0, read_on=1.0), 1)
    codec = load_renderer(fresh).codec
    seen = {codec.decode(source.draw().ids) for _ in range(1000)}
    renderer_of = examples(fresh)
    assert len(seen) == 15
    for trail in TrailStream(family).heldout:
        turns = sloppy_turns(trail, family, random.Random(0), 1.0)
        assert codec.decode(renderer_of.encode(transcript(trail, turns, CONFIG.system), [BASH]).ids) not in seen


def test_the_seed_decides_the_sequences(fresh):
    def first(seed: int) -> list[list[int]]:
        source = examples(fresh, seed=seed)
        return [source.draw().ids for _ in range(20)]

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_a_short_warm_up_learns_the_form(fresh):
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(fresh)
    threads = torch.get_num_threads()
    config = WarmupConfig(steps=1, batch=16, copy_share=0.0)
    before = warm_up(model, examples(fresh, config), config).loss
    config = WarmupConfig(steps=60, batch=16, copy_share=0.0)
    after = warm_up(model, examples(fresh, config), config)
    assert before > 3.0
    assert after.loss < 1.2
    assert (after.steps, after.sequences) == (60, 960)
    assert after.tokens > 960 * 20
    assert not model.training
    assert torch.get_num_threads() == threads


def play(model, renderer, trails: list[Trail]) -> tuple[float, float]:
    """Sampled success and the share of attempts that ended in a malformed turn, at temperature 1, at most 5 turns each."""
    import torch

    def sample(prompt: list[int]) -> list[int]:
        ids = list(prompt)
        for _ in range(24):
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
            ids.append(int(torch.multinomial(torch.softmax(logits, -1), 1)))
            if ids[-1] in renderer.stop_token_ids:
                break
        return ids[len(prompt) :]

    wins = broken = 0
    for trail in trails:
        messages = transcript(trail, [], CONFIG.system)
        prompt = renderer.render(messages, [BASH])
        for _ in range(5):
            sampled = sample(prompt)
            parser = renderer.parser([BASH])
            parser.feed(sampled)
            _, parsed = parser.finish("stop")
            command = json.loads(parsed.tool_calls[0].arguments).get("command") if parsed.tool_calls else None
            if not isinstance(command, str):
                broken += 1
                break
            output, submitted = run_command(trail, command)
            if submitted is not None:
                wins += submitted == trail.code
                break
            call = parsed.tool_calls[0]
            messages += [
                Message(role="assistant", tool_calls=(call,)),
                Message(role="tool", content=output, tool_call_id=call.id),
            ]
            rest = renderer.bridge(record(renderer, prompt, sampled, len(messages) - 1), messages, [BASH])
            assert rest is not None
            prompt = [*prompt, *sampled, *rest]
    return wins / len(trails), broken / len(trails)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_default_warm_up_leaves_room_to_learn(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    directory = build_tiny(tmp_path, TinyConfig(), seed=1)
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    torch.manual_seed(0)
    with torch.inference_mode():
        success, broken = play(model, load_renderer(directory), [*STREAM.heldout] * 3)
    assert 0.15 <= success <= 0.45
    assert broken <= 0.1
