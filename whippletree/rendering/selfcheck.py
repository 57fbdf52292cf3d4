"""A check of a model's renderer before it is used: is a conversation that is built call by call the one that is rendered whole?

Each turn is played as the gateway plays it: render the first prompt, take for the sampled turn what the model's own format
writes for it, bridge to the next prompt, and compare that with rendering all messages at once.

Invariants (tests/rendering/test_rendering_selfcheck.py):
- a renderer that loses a separator, sets a border between the results of parallel calls or writes an end twice is found;
- the renderers of this package, on a template that keeps what was sampled, have no findings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from whippletree.errors import RequestError
from whippletree.protocols import Recorded, Renderer
from whippletree.types import Message, ToolCall, ToolSpec

_TOOL = ToolSpec(
    name="read_file",
    description="Read a file.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


_UNSEEN = "what is rendered with it does not begin with the prompt before it"


def conversation(*, thought: str = "", native_ids: bool = False, parallel: bool = True) -> tuple[Message, ...]:
    """What is played: parallel calls, a turn of text and a call, and a turn of text alone.

    `thought` is put into every turn; `native_ids` names calls as Kimi models do, whose format has the ids in it.
    """

    def call(number: int, path: str) -> ToolCall:
        call_id = f"functions.{_TOOL.name}:{number}" if native_ids else f"call_{number:09d}"
        return ToolCall(id=call_id, name=_TOOL.name, arguments=f'{{"path": "{path}"}}')

    def turn(content: str, *calls: ToolCall) -> list[Message]:
        results = [Message(role="tool", content=f"contents of {call.arguments[10:14]}", tool_call_id=call.id) for call in calls]
        return [Message(role="assistant", content=content, reasoning=thought, tool_calls=calls), *results]

    return (
        Message(role="system", content="You mend programs."),
        Message(role="user", content="Compare a.py with b.py."),
        *turn("", call(0, "a.py"), *([call(1, "b.py")] if parallel else [])),
        *turn("One more.", call(2, "c.py")),
        *turn("They are equal."),
        Message(role="user", content="Thank you."),
    )


def selfcheck(renderer: Renderer) -> list[str]:
    """Findings, one a line: where building the conversation call by call gives another prompt than rendering it whole.

    An empty list means that every turn extends the last one's ids. The conversation is played without and with thinking, and
    with either kind of call ids; the way that fits the model best counts. That a template refuses all of them is a finding.
    """
    ways = [(thought, native_ids) for native_ids in (False, True) for thought in ("", "I compare.")]
    try:
        renderer.render(conversation(), (_TOOL,))
        parallel = True
    except RequestError:
        parallel = False
    findings: list[list[str]] = []
    for thought, native_ids in ways:
        try:
            findings.append(
                _played(renderer, conversation(thought=thought, native_ids=native_ids, parallel=parallel), (_TOOL,))
            )
        except RequestError as error:
            findings.append([f"the conversation of the check cannot be rendered: {error}"])
        if not findings[-1]:
            return []
    return min(findings, key=lambda found: (found[-1].endswith(_UNSEEN), len(found)))


def _played(renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[str]:
    findings: list[str] = []
    turns = [place for place, message in enumerate(messages) if message.role == "assistant"]
    prompt = renderer.render(messages[: turns[0]], tools)
    for place, following in zip(turns, [*turns[1:], len(messages)], strict=True):
        whole = renderer.render(messages[:following], tools)
        sampled = _sampled(renderer, prompt, whole) or _sampled(renderer, prompt, renderer.render(messages[: place + 1], tools))
        if sampled is None:
            return [*findings, f"message {place}: {_UNSEEN}"]
        recorded = Recorded(
            prompt=np.asarray(prompt, dtype=np.int32),
            sampled=np.asarray(sampled, dtype=np.int32),
            text=renderer.to_bytes([*prompt, *sampled]),
            messages=place + 1,
        )
        findings += _misread(renderer, sampled, messages[place], place, tools)
        rest = renderer.bridge(recorded, messages[:following], tools)
        if rest is None:
            findings.append(f"message {place}: recorded ids are not reused, because rendering it again gives another text")
            prompt = whole
            continue
        findings += _compared(renderer, recorded, rest, whole, place)
        prompt = [*prompt, *sampled, *rest]
    return findings


def _sampled(renderer: Renderer, prompt: list[int], whole: list[int]) -> list[int] | None:
    """The turn after the prompt as the model's own format has it, up to the token that ends it; None where there is none."""
    before = renderer.to_bytes(prompt)
    if not renderer.to_bytes(whole).startswith(before):
        return None
    ends = list(accumulate(len(renderer.to_bytes([index])) for index in whole))
    if len(before) not in ends:
        return None
    turn = whole[ends.index(len(before)) + 1 :]
    end = next((place for place, index in enumerate(turn) if index in renderer.stop_token_ids), None)
    return None if end is None else turn[: end + 1]


def _compared(renderer: Renderer, recorded: Recorded, rest: list[int], whole: list[int], place: int) -> list[str]:
    """Where the recorded text is what rendering begins with, all must be equal; else (it was kept) the end must be."""
    rendered, added = renderer.to_bytes(whole), renderer.to_bytes(rest)
    if rendered.startswith(recorded.text):
        equal = recorded.text + added == rendered
        return [] if equal else [f"message {place}: {_difference(recorded.text + added, rendered)}"]
    return [] if rendered.endswith(added) else [f"message {place}: {_difference(added, rendered[-len(added) :])}"]


def _difference(built: bytes, whole: bytes) -> str:
    one, other = built.decode("utf-8", "replace"), whole.decode("utf-8", "replace")
    place = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return f"built call by call it has {one[place : place + 40]!r} where rendering has {other[place : place + 40]!r}"


def _misread(renderer: Renderer, sampled: list[int], message: Message, place: int, tools: Sequence[ToolSpec]) -> list[str]:
    """What the parser makes of the turn, where that is not the message."""
    parser = renderer.parser(tools)
    parser.feed(sampled)
    read = parser.finish("stop")[1]
    if read.content.strip() == message.content and _values(read.tool_calls) == _values(message.tool_calls):
        return []
    return [f"message {place}: its turn is read as {read.content!r} with calls {_values(read.tool_calls)}"]


def _values(calls: Sequence[ToolCall]) -> list[tuple[str, object]]:
    """Names and parsed arguments; arguments that cannot be parsed as their text."""
    values: list[tuple[str, object]] = []
    for call in calls:
        try:
            values.append((call.name, json.loads(call.arguments)))
        except ValueError:
            values.append((call.name, call.arguments))
    return values
