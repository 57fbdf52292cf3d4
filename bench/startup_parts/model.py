"""The model's part in the benchmark: two commands, then the end (three calls), for any harness by its facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whippletree.control.contract.model import VOCABULARY
from whippletree.control.contract.scenarios import Scenario
from whippletree.control.contract.script import Move, Script, command_call, printing
from whippletree.engines.scripted import ScriptedEngine
from whippletree.protocols import HarnessFacts, Renderer

CONTEXT = 1_000_000  # tokens
COMMANDS = 2


def scenario(facts: HarnessFacts) -> Scenario:
    """Two commands; of a harness without tools an edit that fails, then one that is applied."""
    if not facts.shell_tool:
        edit = facts.probe.edit.replace("{path}", "bench-1.txt").replace("{text}", "amber")
        moves = (Move(text=facts.probe.bad_edit), Move(text=edit, again=True))
        return Scenario(name="bench", moves=moves, writes={"bench-1.txt": "amber"})
    moves = []
    for number in range(1, COMMANDS + 1):
        prints, shows = printing(number, "bench")
        moves.append(Move(calls=(command_call(facts, f"echo amber > bench-{number}.txt && {prints}"),), shows=(shows,)))
    return Scenario(name="bench", moves=tuple(moves), writes={f"bench-{n}.txt": "amber" for n in range(1, COMMANDS + 1)})


def answers(facts: HarnessFacts, renderer: Renderer) -> Callable[[Sequence[int]], list[int]]:
    """The same script for any number of attempts at once: what was done is read from each prompt."""
    moves = scenario(facts).moves

    def answer(prompt: Sequence[int]) -> list[int]:
        text = renderer.decode(list(prompt))
        left = moves if facts.shell_tool else moves[1:] if _was_asked_to_mend(moves[0], text) else moves[:1]
        ids: list[int] = renderer.codec.encode(Script(facts, "", left).answer(text))  # type: ignore[attr-defined]
        return [*ids, *renderer.stop_token_ids]

    return answer


def _was_asked_to_mend(bad: Move, text: str) -> bool:
    """Whether the edit that fails is in the history."""
    return bad.text.strip() in text


def engine(facts: HarnessFacts, renderer: Renderer) -> ScriptedEngine:
    """The engine of a gateway."""
    return ScriptedEngine(answers(facts, renderer), context=CONTEXT, vocabulary=VOCABULARY, chunk_tokens=4)
