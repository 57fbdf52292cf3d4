"""What the scripted model answers in one scenario. A state machine over the text of prompts; no I/O.

    prompt ──► a side call's, or asks for a summary?   ──► plain text          (side calls, compactions)
           └─► a sub-agent's?                           ──► the sub-agent's next move
           └─► the next move that is not done           ──► its tool calls; after the last one, the end of the run

A move is done once what its commands print is in a prompt, which is never in the commands themselves:
`printf 'wt-%s-%s' 1 plain`. A harness without tools is shown no output: its moves are turns of text that hold an edit, and
one is done once it was made.

Invariants (tests/control/test_contract_script.py): one rule tells main prompts from side calls, here and in the tap; a move is
made again while its output is missing, but only so often; done moves stay done, also when a compaction takes their output away;
a prompt overflows once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from whippletree.errors import ContextOverflow
from whippletree.protocols import HarnessFacts
from whippletree.types import Struct

TRIES = 3  # how often one move is made
USER = "<|im_start|>user"
ASSISTANT = "<|im_start|>assistant\n"
FINAL = "Done, everything is written."
REPORT = "The sub-agent is done."
_SUMMARY = """<analysis>
Commands were run.
</analysis>
<summary>
Commands were run, and the work goes on with the next one. This is summary {number}.
</summary>
<state_snapshot>
Commands were run, and the work goes on with the next one. This is state {number}.
</state_snapshot>"""
_SUMMARISE = re.compile(r"(create|write|provide|generate|produce)\b[^.]{0,80}(summary|<state_snapshot>)", re.IGNORECASE)


class Move(Struct):
    """One turn of the model: tool calls as (name, arguments); arguments that are a text go out as they are, JSON or not.

    `shows`: what prompts hold once it is done (none: done once it was made). `again`: it is the answer to each further prompt,
    so that one whose reply was lost is made anew.

    Example: Move(calls=(("bash", {"command": "ls"}),), shows=("wt-23-ab",))
    """

    calls: tuple[tuple[str, dict[str, object] | str], ...] = ()
    shows: tuple[str, ...] = ()
    text: str = "I run a command."
    again: bool = False


class Script:
    """The model's part in one rollout. `token` is in the instruction, so that it is known whose prompt it is."""

    def __init__(
        self,
        facts: HarnessFacts,
        token: str,
        moves: Sequence[Move],
        *,
        child: str = "",
        child_moves: Sequence[Move] = (),
        overflow_at: int | None = None,
    ) -> None:
        """`child` is in the instruction of a sub-agent. `overflow_at`: the move whose prompt does not fit, once."""
        self.token = token
        self._facts = facts
        self._lane = _Lane(moves)
        self._child = child
        self._child_lane = _Lane(child_moves)
        self._overflow_at = overflow_at
        self.overflowed = False
        self._summaries = 0
        self._last = ""  # the latest turn, whole: a call that was cut off is gone on with

    @property
    def complete(self) -> bool:
        """Whether what every move shows was seen."""
        return self._lane.complete and self._child_lane.complete

    def of_child(self, text: str) -> bool:
        """Whether a prompt is a sub-agent's: its instruction is there, the main one is not."""
        return bool(self._child) and self._child in text and self.token not in text

    def answer(self, text: str) -> str:
        """The turn that follows a prompt, or its rest where the prompt ends within it. Raises ContextOverflow where the
        scenario says so."""
        prompt, opened, begun = text.rpartition(ASSISTANT)
        if not begun:
            self._last = self._turn(text)
        elif not self._last.startswith(begun):
            self._last = begun + self._turn(prompt + opened)
        return self._last.removeprefix(begun)

    def _turn(self, text: str) -> str:
        last = text.rpartition(USER)[2].partition("<tool_response>")[0]
        if not is_main(self._facts, text):
            return self._summary() if "summar" in text.lower() else FINAL
        if _SUMMARISE.search(last):
            return self._summary()
        if self.of_child(text):
            move = self._child_lane.next(text)
            return written(move) if move is not None else self._child_end()
        move = self._lane.next(text, peek=True)
        if self._overflow_at is not None and not self.overflowed and move is self._lane.at(self._overflow_at):
            self.overflowed = True
            raise ContextOverflow("9001 prompt tokens leave no room in a context of 8192", "shorten the prompt")
        move = self._lane.next(text)
        return written(move) if move is not None else self._end()

    def _summary(self) -> str:
        """Text that says what a summary says; each is another, as a model's would be."""
        self._summaries += 1
        return _SUMMARY.format(number=self._summaries)

    def _end(self) -> str:
        if not self._facts.probe.finish_tool:
            return FINAL
        return written(Move(calls=((self._facts.probe.finish_tool, self._facts.probe.finish_arguments),), text=FINAL))

    def _child_end(self) -> str:
        facts = self._facts
        if not facts.probe.subagent_finish:
            return REPORT
        arguments = filled(facts.probe.subagent_finish_arguments, "{report}", REPORT)
        return written(Move(calls=((facts.probe.subagent_finish, arguments),), text=REPORT))


def is_main(facts: HarnessFacts, text: str) -> bool:
    """Whether a prompt, or a request's body, is one of the main conversation: it offers the shell tool; of a harness without
    one, it lacks the mark of side calls."""
    if facts.shell_tool:
        return f'"{facts.shell_tool}"' in text
    return not facts.probe.side_mark or facts.probe.side_mark not in text


def filled(arguments: dict[str, object], mark: str, text: str) -> dict[str, object]:
    """The arguments with `text` wherever a value is `mark`, at any depth."""

    def put(value: object) -> object:
        if isinstance(value, dict):
            return {key: put(inner) for key, inner in value.items()}
        return text if value == mark else value

    return {key: put(value) for key, value in arguments.items()}


class _Lane:
    """The moves of one conversation and which are done."""

    def __init__(self, moves: Sequence[Move]) -> None:
        self._moves = list(moves)
        self._made = [0] * len(self._moves)
        self._shown = [False] * len(self._moves)

    @property
    def complete(self) -> bool:
        pairs = zip(self._moves, self._shown, self._made, strict=True)
        return all(shown or (not move.shows and made) for move, shown, made in pairs)

    def at(self, place: int) -> Move | None:
        return self._moves[place] if place < len(self._moves) else None

    def next(self, text: str, *, peek: bool = False) -> Move | None:
        """The next move that is not done, which counts as made unless this is a `peek`; None after the last one."""
        for place, move in enumerate(self._moves):
            self._shown[place] = self._shown[place] or (bool(move.shows) and all(shown in text for shown in move.shows))
            most = TRIES if move.shows or move.again else 1
            if not self._shown[place] and self._made[place] < most:
                self._made[place] += not peek
                return move
        return None


def written(move: Move) -> str:
    """A move as the model writes it."""
    thought = f"next: {len(move.calls)} call(s)" if move.calls else "next: an edit"
    lines = [f"<think>\n{thought}\n</think>\n\n{move.text}"]
    for name, arguments in move.calls:
        told = arguments if isinstance(arguments, str) else json.dumps(arguments)
        lines.append(f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {told}}}\n</tool_call>')
    return "\n".join(lines)


def command_call(facts: HarnessFacts, command: str) -> tuple[str, dict[str, object] | str]:
    """A call of the harness's shell tool."""
    return facts.shell_tool, {facts.shell_argument: command, **facts.shell_extra}


def printing(number: int, name: str) -> tuple[str, str]:
    """A command's part that prints a word, and the word, which is not in the command."""
    return f"printf 'wt-%s-%s\\n' {number} {name}", f"wt-{number}-{name}"
