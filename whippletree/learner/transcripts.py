"""How harnesses write an attempt at a trail down: the conversations that a tiny model is warmed up on.

    turns of the demonstrator ─► one harness's messages ─► [system, task, call, result, call, …]
                                     └─ that compacts: [system, task, call, result] [system, task + summary, call, …]

Invariants (tests/learner/test_transcripts.py):
- the messages are those that the harness of the format sends for the same turns, word for word;
- a captured format's are those of its file (captured.py);
- a harness that compacts gives a conversation per stretch, and every turn of the attempt is in exactly one of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from whippletree.configuration import Config, Natural
from whippletree.harnesses.whitebox_loop import filled
from whippletree.learner.captured import Surroundings, captured_messages, load_captured, opening
from whippletree.tasks.demonstrator import Turn
from whippletree.tasks.trail import Trail
from whippletree.types import Message, ToolCall, ToolSpec


class TranscriptFormat(Config):
    """How one harness writes an attempt down. In templates {name} is replaced for the names that are given.

    Example: TranscriptFormat(system="Answer with one command.", mode="text", command="```\\n{command}\\n```")
    """

    system: str = "Work with the bash tool."
    """The system prompt, word for word, as the gateway will see it; empty: none."""
    mode: Literal["toolcall", "text"] = "toolcall"
    """How a command is asked for: by a tool call, or in the text of the turn."""
    tool: str = "bash"
    """Name of the tool."""
    argument: str = "command"
    """Name of the tool's argument."""
    command: str = "{command}"
    """Text mode: what a turn with {command} says."""
    task: str = "{task}"
    """The first user message; {task} is the task's instruction."""
    observation: str = "{output}"
    """What is shown of a command's end: {output}, {exit_code}."""
    compact_every: Natural = 0
    """Turns after which the history is replaced by a summary of all commands so far; 0: never."""
    summary_step: str = "$ {command}\n{observation}\n"
    """One command in the summary: {command}, {observation}."""
    summary_message: str = "{task}\n\nWork so far:\n{summary}"
    """The user message after a compaction: {task}, {summary}."""
    captured: str = ""
    """File of a format that was captured from a harness, relative to the working directory, which says all of the above; empty:
    none."""
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """How often demonstrations are written in this format, relative to the others."""


NO_TASK = Trail(task_id="", names=("",), code="", decoys=())


@dataclass(frozen=True)
class Transcript:
    """A conversation and the tools that it offers."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]


class Formats:
    """The formats of a model, those of files read in."""

    def __init__(self, formats: Sequence[TranscriptFormat]) -> None:
        """Raises ConfigurationError for a file that cannot be read."""
        self.all = tuple(formats)
        self._captured = {one.captured: load_captured(Path(one.captured)) for one in formats if one.captured}

    @property
    def captured(self) -> bool:
        """Whether any comes from a file."""
        return bool(self._captured)

    def choose(self, rng: random.Random) -> TranscriptFormat:
        """One of them, by weight."""
        return self.all[0] if len(self.all) == 1 else rng.choices(self.all, [format.weight for format in self.all])[0]

    def fixed(self, format: TranscriptFormat, around: Surroundings) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...]]:
        """What stands before the task, the same in every conversation: system messages and tools."""
        found = self._captured.get(format.captured)
        if found is None:
            written = transcripts(NO_TASK, (), format)[0]
            return written.messages[:-1], written.tools
        return tuple(one for one in opening(found, "", around) if one.role == "system"), found.tools

    def write(
        self, trail: Trail, turns: Sequence[Turn], format: TranscriptFormat, around: Surroundings, rng: random.Random
    ) -> list[Transcript]:
        """The conversations over these turns of a task, in order. `around`: what a captured harness tells of day and machine;
        `rng` draws what differs between its results."""
        found = self._captured.get(format.captured)
        if found is None:
            return transcripts(trail, turns, format)
        return [Transcript(captured_messages(found, trail, turns, around, rng), found.tools)]


def transcripts(trail: Trail, turns: Sequence[Turn], format: TranscriptFormat) -> list[Transcript]:
    """The conversations that a harness of this format has over these turns of a task, in order."""
    tools = (ToolSpec(name=format.tool, description=""),) if format.mode == "toolcall" else ()
    stretch = format.compact_every or max(1, len(turns))
    task = filled(format.task, task=trail.instruction)
    found, notes = [], ""
    for first in range(0, max(1, len(turns)), stretch):
        said = filled(format.summary_message, task=task, summary=notes) if notes else task
        messages = [Message(role="system", content=format.system)] if format.system else []
        messages.append(Message(role="user", content=said))
        for number, turn in enumerate(turns[first : first + stretch], first):
            shown = filled(format.observation, output=turn.output, exit_code=turn.exit_code)
            messages += _turn(format, number, turn, shown)
            notes += filled(format.summary_step, command=turn.command, observation=shown)
        found.append(Transcript(tuple(messages), tools))
    return found


def _turn(format: TranscriptFormat, number: int, turn: Turn, shown: str) -> list[Message]:
    """What the model says in a turn, and what it is shown then (nothing after the last one)."""
    if format.mode == "text":
        said = Message(role="assistant", content=filled(format.command, command=turn.command))
        result = Message(role="user", content=shown)
    else:
        call = ToolCall(id=f"call_{number}", name=format.tool, arguments=json.dumps({format.argument: turn.command}))
        said = Message(role="assistant", tool_calls=(call,))
        result = Message(role="tool", content=shown, tool_call_id=call.id)
    return [said, result] if turn.output else [said]
