"""How harnesses write an attempt down. What the harnesses really send: tests/harnesses/test_transcript_formats.py."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from whippletree.configuration import convert
from whippletree.errors import ConfigurationError
from whippletree.learner.tiny import TinyConfig, train_tokenizer
from whippletree.learner.transcripts import Formats, TranscriptFormat, transcripts
from whippletree.learner.warmup import Examples, WarmupConfig
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.demonstrator import Turn, sloppy_turns
from whippletree.tasks.trail import Trail, TrailStream

FAMILY = TrailFamily(depths=(3,))
STREAM = TrailStream(FAMILY)
COMPACTING = TranscriptFormat(system="S", tool="t", compact_every=2, summary_step="{command}:{observation};")
TEXT = TranscriptFormat(system="", mode="text", command="run {command}", observation="got {output}", task="do {task}")


def attempt(index: int = 0) -> tuple[Trail, list[Turn]]:
    trail = STREAM.train(index)
    return trail, sloppy_turns(trail, FAMILY, random.Random(index), 1.0)


@pytest.mark.parametrize("every", [0, 1, 2, 3, 9])
def test_every_turn_is_in_exactly_one_conversation(every: int) -> None:
    trail, turns = attempt()
    format = convert(TranscriptFormat, {"compact_every": every}, "t")
    found = transcripts(trail, turns, format)
    calls = [call for part in found for message in part.messages for call in message.tool_calls]
    assert [json.loads(call.arguments)["command"] for call in calls] == [turn.command for turn in turns]
    assert len(found) == (-(-len(turns) // every) if every else 1)


def test_a_compaction_begins_with_the_task_and_all_commands_so_far() -> None:
    trail, turns = attempt()
    first, second = transcripts(trail, turns, COMPACTING)
    notes = "".join(f"{turn.command}:{turn.output};" for turn in turns[:2])
    assert [message.role for message in first.messages] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert second.messages[0] == first.messages[0]
    assert second.messages[1].content == f"{trail.instruction}\n\nWork so far:\n{notes}"
    assert [tool.name for tool in second.tools] == ["t"]


def test_text_mode_has_no_tools_and_no_calls() -> None:
    trail, turns = attempt()
    (only,) = transcripts(trail, turns, TEXT)
    assert only.tools == () and only.messages[0].content == f"do {trail.instruction}"
    assert [(message.role, message.content) for message in only.messages[1:3]] == [
        ("assistant", f"run cat {trail.names[0]}"),
        ("user", f"got {turns[0].output}"),
    ]
    assert not any(message.tool_calls for message in only.messages)


def test_formats_are_drawn_by_weight() -> None:
    formats = (TEXT, convert(TranscriptFormat, {"weight": 3.0}, "t"))
    rng = random.Random(0)
    chooser = Formats(formats)
    drawn = [chooser.choose(rng) for _ in range(2000)]
    assert abs(drawn.count(TEXT) / 2000 - 0.25) < 0.05
    with pytest.raises(ConfigurationError, match="weight"):
        convert(TranscriptFormat, {"weight": 0.0}, "t")


def test_the_tokenizer_squeezes_every_format(tmp_path: Path) -> None:
    """An attempt at a trail of three files is short in each, and the warm-up shows all of them."""
    config = TinyConfig(family=FAMILY, formats=(COMPACTING, TEXT))
    tokenizer = train_tokenizer(config)
    assert isinstance(tokenizer, Tokenizer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    template = Path(__file__).parents[2] / "whippletree/rendering/templates/tiny.jinja"
    (tmp_path / "chat_template.jinja").write_text(template.read_text())
    examples = Examples(tmp_path, FAMILY, config.transcript_formats, WarmupConfig(copy_share=0.0, read_on=1.0), 1)
    drawn = [examples.draw() for _ in range(40)]
    assert all(len(example.ids) < 90 for example in drawn)
    texts = [tokenizer.decode(example.ids, skip_special_tokens=False) for example in drawn]
    assert 5 < sum("Work so far" in text for text in texts) < 35 and any("run cat" in text for text in texts)
