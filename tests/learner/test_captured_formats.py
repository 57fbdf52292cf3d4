"""Formats that were captured from harnesses: the conversations they give, and the warm-up on them."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import msgspec
import pytest

from whippletree.errors import ConfigurationError
from whippletree.learner.captured import (
    CapturedFormat,
    Surroundings,
    captured_messages,
    draw_surroundings,
    load_captured,
    opening,
    result,
)
from whippletree.learner.tiny import TinyConfig, build_tiny
from whippletree.learner.transcripts import Formats, TranscriptFormat
from whippletree.learner.warmup import Examples, WarmupConfig, forest_loss, padded_loss, warm_up
from whippletree.rendering.renderer import load_renderer
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.demonstrator import Turn, sloppy_turns
from whippletree.tasks.trail import TrailStream
from whippletree.types import Message, ToolSpec

FAMILY = TrailFamily(depths=(2,))
TRAIL = TrailStream(FAMILY).train(0)
TURNS = sloppy_turns(TRAIL, FAMILY, random.Random(0), 1.0)
AROUND = Surroundings(date="2026-11-30", kernel="6.1.0-18-amd64")
SHELL = ToolSpec(name="shell", description="Runs a command.", parameters={"type": "object", "properties": {"cmd": {}}})
TALKS = CapturedFormat(
    harness="one",
    version="1",
    tool="shell",
    argument="cmd",
    opening=(
        Message(role="system", content="Be brief. {braces} stay."),
        Message(role="user", content="{task}\nToday is {date} on {kernel}."),
    ),
    tools=(SHELL,),
    shown="id {hex} after {seconds} s, {tokens} tokens:\n{output}",
    failed="failed: {trimmed}",
    farewell="done",
)
SILENT = msgspec.structs.replace(TALKS, harness="two", opening=(Message(role="user", content="{task}"),), farewell="")


def write(directory: Path, format: CapturedFormat) -> str:
    path = directory / f"{format.harness}.json"
    path.write_bytes(msgspec.json.encode(format))
    return str(path)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TinyConfig:
    directory = tmp_path_factory.mktemp("formats")
    formats = tuple(TranscriptFormat(captured=write(directory, format)) for format in (TALKS, SILENT))
    return TinyConfig(family=FAMILY, formats=formats, tools="whole", warmup=WarmupConfig(steps=0))


@pytest.fixture(scope="module")
def fresh(config: TinyConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("cache"), config, seed=1)


def examples(fresh: Path, config: TinyConfig, warmup: WarmupConfig | None = None) -> Examples:
    return Examples(fresh, FAMILY, config.formats, warmup or WarmupConfig(), 1)


def test_the_opening_has_the_task_the_day_and_the_machine_and_other_braces_stay() -> None:
    system, user = opening(TALKS, "do it", AROUND)
    assert system.content == "Be brief. {braces} stay."
    assert user.content == "do it\nToday is 2026-11-30 on 6.1.0-18-amd64."


def test_a_conversation_ends_with_the_last_word_where_the_harness_asks_for_one() -> None:
    found = captured_messages(TALKS, TRAIL, TURNS, AROUND, random.Random(0))
    assert [message.role for message in found[2:]] == ["assistant", "tool"] * 3 + ["assistant"]
    commands = [json.loads(call.arguments)["cmd"] for message in found for call in message.tool_calls]
    assert commands == [turn.command for turn in TURNS]
    assert found[-2].content.endswith(":\nsubmitted\n") and found[-1].content == "done"
    ends = captured_messages(SILENT, TRAIL, TURNS, AROUND, random.Random(0))
    assert [message.role for message in ends] == ["user", *["assistant", "tool"] * 2, "assistant"] and ends[-1].tool_calls


def test_an_attempt_that_hands_nothing_in_has_no_last_word() -> None:
    lost = sloppy_turns(TRAIL, FAMILY, random.Random(0), 1.0, lost=1.0, lost_turns=3)
    found = captured_messages(TALKS, TRAIL, lost, AROUND, random.Random(0))
    assert found[-1].tool_calls and not any(message.content == "done" for message in found)


def test_results_have_what_the_command_printed_and_how_it_ended() -> None:
    rng = random.Random(1)
    seen = [result(TALKS, Turn("cat x", "twelve bytes"), rng) for _ in range(50)]
    parts = [re.fullmatch(r"id ([0-9a-f]{6}) after (0\.[0-9]{4}) s, 3 tokens:\ntwelve bytes", text) for text in seen]
    assert all(parts) and len({part[1] for part in parts if part}) == 50
    assert 1 < len({part[2] for part in parts if part}) < 50  # many commands take no time
    assert result(TALKS, Turn("cat x", "no file\n", 1), rng) == "failed: no file"


def test_days_and_machines_vary_and_the_seed_decides_them() -> None:
    drawn = [draw_surroundings(random.Random(number)) for number in range(40)]
    assert len({around.date for around in drawn}) > 30 and len({around.kernel for around in drawn}) > 30
    assert drawn == [draw_surroundings(random.Random(number)) for number in range(40)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "truncated"),
        (msgspec.json.encode(msgspec.structs.replace(TALKS, opening=())), "no opening message has the place {task}"),
        (msgspec.json.encode(msgspec.structs.replace(TALKS, failed="no")), "a result has no place for the output"),
    ],
)
def test_a_file_that_is_no_format_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=re.escape(complaint)) as refused:
        load_captured(tmp_path / "x.json")
    assert "x.json" in str(refused.value)
    with pytest.raises(ConfigurationError, match="No such file"):
        Formats([TranscriptFormat(captured=str(tmp_path / "none.json"))])


def test_another_file_is_another_model(tmp_path: Path) -> None:
    format = TranscriptFormat(captured=write(tmp_path, TALKS))
    config = TinyConfig(family=FAMILY, formats=(format,), warmup=WarmupConfig(steps=0))
    first = build_tiny(tmp_path / "cache", config, seed=1)
    assert build_tiny(tmp_path / "cache", config, seed=1) == first
    write(tmp_path, msgspec.structs.replace(TALKS, farewell="bye"))
    assert build_tiny(tmp_path / "cache", config, seed=1) != first


def test_prompts_are_those_of_the_gateway_with_tools_whole(fresh: Path, config: TinyConfig) -> None:
    renderer, source = load_renderer(fresh), examples(fresh, config)
    messages = captured_messages(TALKS, TRAIL, TURNS, AROUND, random.Random(0))
    example = source.encode(messages, TALKS.tools)
    for place, message in enumerate(messages):
        if message.role == "assistant":
            prompt = renderer.render(messages[:place], TALKS.tools)
            assert (
                example.ids[: len(prompt)] == prompt and not example.trained[len(prompt) - 1] and example.trained[len(prompt)]
            )
    assert "Runs a command." in renderer.decode(example.ids)


def test_a_batch_is_of_one_day_and_lists_lie_behind_a_harness_prompt(fresh: Path, config: TinyConfig) -> None:
    renderer, source = load_renderer(fresh), examples(fresh, config)
    dates, prompts = [], set()
    for _ in range(20):
        texts = [renderer.decode(example.ids) for example in source.batch(8)]
        found = {date for text in texts for date in re.findall(r"Today is (\S+)", text)}
        dates += found
        assert len(found) <= 1
        assert all(text.startswith("<|im_start|>tools\n") and "Runs a command." in text for text in texts)
        lists = [text for text in texts if "start at" not in text]
        prompts |= {text.partition("<|im_start|>user")[0] for text in lists}
    assert len(set(dates)) > 10 and len(prompts) == 2


def test_captured_formats_go_together_with_written_ones(tmp_path: Path) -> None:
    written = TranscriptFormat(system="Use the shell.", tool="run")
    formats = Formats([written, TranscriptFormat(captured=write(tmp_path, TALKS))])
    messages, tools = formats.fixed(written, AROUND)
    assert [message.content for message in messages] == ["Use the shell."] and [tool.name for tool in tools] == ["run"]
    messages, tools = formats.fixed(formats.all[1], AROUND)
    assert [message.content for message in messages] == ["Be brief. {braces} stay."] and tools == (SHELL,)
    (found,) = formats.write(TRAIL, TURNS, written, AROUND, random.Random(0))
    assert found.messages[:2] == (
        Message(role="system", content="Use the shell."),
        Message(role="user", content=TRAIL.instruction),
    )


def test_sharing_the_prompt_changes_no_loss_and_no_gradient(fresh: Path, config: TinyConfig) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    batch = examples(fresh, config).batch(12)
    model = AutoModelForCausalLM.from_pretrained(fresh)
    plain, whole = padded_loss(model, batch)
    plain.backward()
    expected = {name: found.grad.clone() for name, found in model.named_parameters()}
    model.zero_grad()
    shared, laid = forest_loss(model)(batch)
    shared.backward()
    assert float(shared.detach()) == pytest.approx(float(plain.detach()), abs=1e-5) and laid < whole
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, expected[name], atol=1e-5), name


def test_a_short_warm_up_learns_the_forms_and_leaves_the_model_as_it_was(fresh: Path, config: TinyConfig) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(fresh)
    attention = model.config._attn_implementation
    short = WarmupConfig(steps=40, batch=16, copy_share=0.0)
    first = warm_up(model, examples(fresh, config, short), WarmupConfig(steps=1, batch=16)).loss
    assert warm_up(model, examples(fresh, config, short), short).loss < 0.6 * first
    assert model.config._attn_implementation == attention
