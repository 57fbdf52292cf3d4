"""Laying a harness's steps beside captured calls, in order. Pure.

Turns that are equal on a normal form (text, and tool calls with their arguments) are paired first, by the longest common
subsequence; what lies between two equal turns is paired where most agrees, so that one changed or dropped turn shifts no other.

Invariants (tests/traces/test_traces_alignment.py):
- the pairs of an alignment cross nowhere, and every turn and call is in one pair or left alone;
- of two sides with the same turns, nothing is left alone;
- as many pairs are made as the shorter side of each gap allows.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import msgspec

from whippletree.traces.atif import Step, StepToolCall, Trajectory, content_text
from whippletree.traces.payloads import read_reply
from whippletree.traces.tree import Node

MOST_CELLS = 250_000  # of a gap that is searched for its best pairs; a larger one is paired by place


class TurnKey(msgspec.Struct, frozen=True):
    """What two turns must have in common to count as the same one. `calls` are names and arguments (sorted JSON).

    Example: TurnKey(text="Let me look.", calls=(("bash", b'{"command":"ls"}'),))
    """

    text: str = ""
    calls: tuple[tuple[str, bytes], ...] = ()


class Turn(msgspec.Struct, frozen=True, eq=False):
    """A model turn of an account. A step that stands for n calls has n turns; only the `last` of them can be compared."""

    step: Step
    trajectory: str
    key: TurnKey
    last: bool = True


class Alignment(msgspec.Struct, frozen=True):
    """Pairs in order, and what was left alone on either side."""

    pairs: list[tuple[Turn, Node]]
    turns: list[Turn]
    nodes: list[Node]

    @property
    def agreed(self) -> int:
        """How much all pairs agree."""
        return sum(agreement(turn, node, key_of(node)) for turn, node in self.pairs)


def turns_of(trajectory: Trajectory, name: str) -> list[Turn]:
    """The model turns of a trajectory, without copied context and steps of no model call. `name` is "" for the main one."""
    turns: list[Turn] = []
    for step in trajectory.steps:
        if step.source == "agent" and not step.is_copied_context and step.llm_call_count != 0:
            calls = tuple((call.function_name, normal_arguments(_told(call))) for call in step.tool_calls or [])
            count = step.llm_call_count or 1
            unlike = [TurnKey(text=f"call {number} of {count} of step {step.step_id}") for number in range(1, count)]
            turns += [Turn(step, name, key, last=False) for key in unlike]
            turns.append(Turn(step, name, TurnKey(content_text(step.message).strip(), calls)))
    return turns


def _told(call: StepToolCall) -> dict[str, Any] | str:
    """The arguments of a call as the model wrote them: where they are no object, traces/atif_export.py keeps them beside it."""
    written = (call.extra or {}).get("arguments")
    return written if isinstance(written, str) else call.arguments


def key_of(node: Node) -> TurnKey:
    """The normal form of what a call sampled. Raises AlignmentError when its reply cannot be read."""
    message = read_reply(node.call_id, node.reply_json)
    calls = tuple((call.name, normal_arguments(call.arguments)) for call in message.tool_calls)
    return TurnKey(message.content.strip(), calls)


def normal_arguments(arguments: dict[str, Any] | str) -> bytes:
    """Arguments of a tool call on a normal form: order and white space of their JSON do not count."""
    if isinstance(arguments, str):
        try:
            return msgspec.json.encode(msgspec.json.decode(arguments.strip() or "{}"), order="sorted")
        except msgspec.DecodeError:
            return arguments.strip().encode()
    return msgspec.json.encode(arguments, order="sorted")


def align(turns: Sequence[Turn], nodes: Sequence[Node]) -> Alignment:
    """Pair turns and calls in order."""
    result = Alignment([], [], [])
    keys = [key_of(node) for node in nodes]
    matcher = difflib.SequenceMatcher(None, [turn.key for turn in turns], keys, autojunk=False)
    for operation, a, b, c, d in matcher.get_opcodes():
        if operation == "equal":
            result.pairs.extend(zip(turns[a:b], nodes[c:d], strict=True))
        else:
            _fill(turns[a:b], nodes[c:d], keys[c:d], result)
    return result


def _fill(turns: Sequence[Turn], nodes: Sequence[Node], keys: Sequence[TurnKey], result: Alignment) -> None:
    """Pair what lies between two equal turns so that most agrees."""
    row = column = 0
    best = _scores(turns, nodes, keys)
    while row < len(turns) and column < len(nodes):
        paired = best[row + 1][column + 1] + agreement(turns[row], nodes[column], keys[column])
        if paired >= best[row + 1][column] and paired >= best[row][column + 1]:
            result.pairs.append((turns[row], nodes[column]))
            row, column = row + 1, column + 1
        elif best[row + 1][column] >= best[row][column + 1]:
            result.turns.append(turns[row])
            row += 1
        else:
            result.nodes.append(nodes[column])
            column += 1
    result.turns.extend(turns[row:])
    result.nodes.extend(nodes[column:])


def _scores(turns: Sequence[Turn], nodes: Sequence[Node], keys: Sequence[TurnKey]) -> list[list[int]]:
    """best[i][j]: the most agreement that the turns from i on and the calls from j on can have. All 0 where too many."""
    best = [[0] * (len(nodes) + 1) for _ in range(len(turns) + 1)]
    if len(turns) * len(nodes) > MOST_CELLS:
        return best
    for row in range(len(turns) - 1, -1, -1):
        for column in range(len(nodes) - 1, -1, -1):
            paired = best[row + 1][column + 1] + agreement(turns[row], nodes[column], keys[column])
            best[row][column] = max(paired, best[row + 1][column], best[row][column + 1])
    return best


def agreement(turn: Turn, node: Node, key: TurnKey) -> int:
    """How much a turn and a call agree. A pair counts for more than any agreement, so that no pair is given up for a better."""
    metrics = turn.step.metrics
    same = 100
    if turn.last:
        same += 4 * (metrics is not None and metrics.completion_token_ids == node.sampled_ids.tolist())
        same += 2 * (metrics is not None and metrics.completion_tokens == node.call.sampled_tokens)
        same += 2 * (turn.key.calls == key.calls) + 2 * (turn.key.text == key.text)
    return same
