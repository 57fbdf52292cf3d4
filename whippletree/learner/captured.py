"""What a real harness writes down of an attempt, as it was captured once: the model of its conversations for the warm-up.

    file ─► tools, opening {task}   ─► [system, task, call, result {output}, call, …, the last word]
            {date}, {kernel}: facts of the day and the machine, drawn anew for every batch
            {hex}, {seconds}, {tokens}: what differs from one result to the next, drawn or counted

Invariants (tests/learner/test_captured_formats.py):
- for the same turns, day and machine the messages are those that the harness sent, word for word;
- a file that is none, or lacks the place of the task or of a command's output, is refused with its path.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from whippletree.errors import ConfigurationError, words_of
from whippletree.harnesses.whitebox_loop import filled
from whippletree.tasks.demonstrator import Turn, run_command
from whippletree.tasks.trail import Trail
from whippletree.types import Message, Struct, ToolCall, ToolSpec

BYTES_PER_TOKEN = 4  # how harnesses estimate the tokens of an output
FIRST_DAY = datetime.date(2026, 1, 1)
DAYS = 1000
INSTANT = 0.5  # share of the commands that took no measurable time


class CapturedFormat(Struct):
    """One harness's conversations. In texts {name} is a place: {task} (opening); {output}, or {trimmed} without its last
    line breaks (`shown`, `failed`: results of commands that succeeded and that failed); {date}, {kernel} (opening); {hex},
    {seconds}, {tokens} (results). `farewell`: what the model says when the work is done, "" where handing in ends the attempt.

    Example: CapturedFormat(harness="pi", version="0.73.1", tool="bash", argument="command", shown="{output}", ...)
    """

    harness: str
    version: str
    tool: str
    argument: str
    opening: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    shown: str
    failed: str
    farewell: str = ""


class Surroundings(Struct):
    """Facts that a harness may tell, the same for a whole run.

    Example: Surroundings(date="2026-11-30", kernel="6.1.0-18-amd64")
    """

    date: str
    kernel: str


def load_captured(path: Path) -> CapturedFormat:
    """A captured format from its file. Raises ConfigurationError."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=CapturedFormat)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(f"captured format {path}: {words_of(error)}", "capture it again, or mend the path") from error
    if not any("{task}" in message.content for message in found.opening):
        raise ConfigurationError(f"captured format {path}: no opening message has the place {{task}}", "capture it again")
    if any("{output}" not in text and "{trimmed}" not in text for text in (found.shown, found.failed)):
        raise ConfigurationError(f"captured format {path}: a result has no place for the output", "capture it again")
    return found


def draw_surroundings(rng: random.Random) -> Surroundings:
    """Any day and any machine, so that a model learns to pay them no heed."""
    day = FIRST_DAY + datetime.timedelta(days=rng.randrange(DAYS))
    release = f"{rng.randint(4, 7)}.{rng.randint(0, 30)}.{rng.randint(0, 60)}-{rng.choice(('generic', 'amd64', 'cloud', 'fc'))}"
    return Surroundings(date=day.isoformat(), kernel=release)


def opening(format: CapturedFormat, task: str, around: Surroundings) -> tuple[Message, ...]:
    """What the harness sends first."""
    return tuple(
        msgspec.structs.replace(message, content=filled(message.content, task=task, date=around.date, kernel=around.kernel))
        for message in format.opening
    )


def captured_messages(
    format: CapturedFormat, trail: Trail, turns: Sequence[Turn], around: Surroundings, rng: random.Random
) -> tuple[Message, ...]:
    """The conversation that the harness has over these turns of a task."""
    messages = list(opening(format, trail.instruction, around))
    for number, turn in enumerate(turns):
        arguments = json.dumps({format.argument: turn.command})
        call = ToolCall(id=f"call_{number}", name=format.tool, arguments=arguments)
        messages.append(Message(role="assistant", tool_calls=(call,)))
        if turn.output:
            messages.append(Message(role="tool", content=result(format, turn, rng), tool_call_id=call.id))
    last = turns[-1]
    printed, handed_in = run_command(trail, last.command)
    if format.farewell and handed_in is not None:
        shown = result(format, Turn(last.command, printed), rng)
        messages.append(Message(role="tool", content=shown, tool_call_id=f"call_{len(turns) - 1}"))
        messages.append(Message(role="assistant", content=format.farewell))
    return tuple(messages)


def result(format: CapturedFormat, turn: Turn, rng: random.Random) -> str:
    """What the model is shown of a command's end."""
    return filled(
        format.failed if turn.exit_code else format.shown,
        output=turn.output,
        trimmed=turn.output.rstrip("\n"),
        hex=f"{rng.randrange(16**6):06x}",
        seconds="0.0000" if rng.random() < INSTANT else f"{rng.random() / 10:.4f}",
        tokens=str(-(-len(turn.output.encode()) // BYTES_PER_TOKEN)),
    )
