"""What a check tries, as data: one scenario is one attempt with a script and, in some, trouble.

Invariants (tests/control/test_contract_script.py): every scenario's name is its own and known (`known`); what a harness cannot
do by its facts is no scenario; no command holds the word that it prints.
"""

from __future__ import annotations

from whippletree.control.contract.script import REPORT, Move, command_call, filled, printing
from whippletree.control.contract.tap import Trouble
from whippletree.protocols import HarnessFacts
from whippletree.types import Struct

CHILD = "wt-child-task"
LINES = 2000  # lines of five characters that a command of the compaction prints
ROUNDS = 8  # such commands
STEPS = 2  # the step limit of the scenario of that name
DIALECTS = ("chat", "responses", "messages", "gemini")


class Scenario(Struct):
    """One attempt. `writes` are files in the working directory with their text, each a line; `settings` are the adapter's;
    `faults` are by the number of the request (tap.py); `twice`: two attempts at the same time.

    Example: Scenario(name="plain", moves=(Move(...),), writes={"plain.txt": "amber-plain"})
    """

    name: str
    moves: tuple[Move, ...] = ()
    child_moves: tuple[Move, ...] = ()
    writes: dict[str, str] = {}
    settings: dict[str, object] = {}
    faults: dict[int, Trouble] = {}
    overflow_at: int | None = None
    twice: bool = False


def scenarios(facts: HarnessFacts, *, dialect_setting: bool = False) -> list[Scenario]:
    """What applies to a harness with these facts. `dialect_setting`: its settings have a key `dialect`."""
    found = [_writing("plain", facts)]
    if dialect_setting:
        found += [_writing(f"dialect-{name}", facts, settings={"dialect": name}) for name in facts.dialects[1:]]
    found += [
        *([_parallel(facts)] if facts.shell_tool else []),
        *([_bad_arguments(facts)] if facts.shell_tool or facts.probe.bad_edit else []),
        *(_tools(facts) if facts.shell_tool else []),
        _writing("429", facts, faults={1: "429"}),
        _writing("500", facts, faults={1: "500"}),
        _writing("drop", facts, rounds=2, faults={2 if facts.shell_tool else 1: "drop"}),
        _writing("overflow", facts, rounds=2, overflow_at=1 if facts.shell_tool else 0),
        _writing("two-at-once", facts, rounds=2, twice=True),
    ]
    if facts.probe.extending:
        found.append(_writing("extending", facts, settings=facts.probe.extending))
    return found


def known() -> tuple[str, ...]:
    """The names of all scenarios that there are, of whatever harness."""
    fixed = (
        "plain",
        "parallel",
        "arguments",
        "429",
        "500",
        "drop",
        "overflow",
        "compaction",
        "subagent",
        "steps",
        "two-at-once",
    )
    return (*fixed, "extending", *(f"dialect-{name}" for name in DIALECTS))


def _tools(facts: HarnessFacts) -> list[Scenario]:
    """Scenarios of harnesses that call tools, and have what they need."""
    found = []
    if facts.compacts and facts.probe.compaction:
        found.append(_compaction(facts))
    if facts.probe.subagent_tool:
        found.append(_subagent(facts))
    if "steps" in facts.variations:
        found.append(_step_limit(facts))
    return found


def _write(facts: HarnessFacts, name: str, number: int) -> tuple[Move, dict[str, str]]:
    """A move that writes a file: by a command, which prints a word besides, or by an edit."""
    path, text = f"{name}-{number}.txt", f"amber-{name}-{number}"
    if not facts.shell_tool:
        edit = facts.probe.edit.replace("{path}", path).replace("{text}", text)
        return Move(text=edit, again=True), {path: text}
    prints, shows = printing(number, name)
    call = command_call(facts, f"echo {text} > {path} && {prints}")
    return Move(calls=(call,), shows=(shows,)), {path: text}


def _writing(
    name: str,
    facts: HarnessFacts,
    *,
    rounds: int = 1,
    settings: dict[str, object] | None = None,
    faults: dict[int, Trouble] | None = None,
    overflow_at: int | None = None,
    twice: bool = False,
) -> Scenario:
    moves: list[Move] = []
    writes: dict[str, str] = {}
    most = rounds if facts.shell_tool else 1 if facts.probe.edit else 0  # without tools a run is one turn
    for number in range(1, most + 1):
        move, written = _write(facts, name, number)
        moves.append(move)
        writes |= written
    return Scenario(
        name=name,
        moves=tuple(moves),
        writes=writes,
        settings=settings or {},
        faults=faults or {},
        overflow_at=overflow_at,
        twice=twice,
    )


def _parallel(facts: HarnessFacts) -> Scenario:
    first, one = _write(facts, "parallel", 1)
    second, other = _write(facts, "parallel", 2)
    both = Move(calls=(*first.calls, *second.calls), shows=(*first.shows, *second.shows), text="I run two commands.")
    return Scenario(name="parallel", moves=(both,), writes=one | other)


def _bad_arguments(facts: HarnessFacts) -> Scenario:
    bad = Move(calls=((facts.shell_tool, f'{{"{facts.shell_argument}": "echo oops'),))
    if not facts.shell_tool:
        bad = Move(text=facts.probe.bad_edit)
    good, writes = _write(facts, "arguments", 1)
    return Scenario(name="arguments", moves=(bad, good), writes=writes)


def _compaction(facts: HarnessFacts) -> Scenario:
    moves: list[Move] = []
    for number in range(1, ROUNDS + 1):
        prints, shows = printing(number, "compaction")
        moves.append(Move(calls=(command_call(facts, f"seq -w 1 {LINES}; {prints}"),), shows=(shows,)))
    last, writes = _write(facts, "compaction", ROUNDS + 1)
    return Scenario(name="compaction", moves=(*moves, last), writes=writes, settings=facts.probe.compaction)


def _step_limit(facts: HarnessFacts) -> Scenario:
    """More commands than steps; the first one's file must be there."""
    made = [_write(facts, "steps", number) for number in range(1, STEPS + 3)]
    return Scenario(name="steps", moves=tuple(move for move, _ in made), writes=made[0][1], settings={"step_limit": STEPS})


def _subagent(facts: HarnessFacts) -> Scenario:
    task = f"This is {CHILD}: run one shell command, then report."
    arguments = filled(facts.probe.subagent_arguments, "{prompt}", task)
    inner, writes = _write(facts, "subagent", 1)
    start = Move(calls=((facts.probe.subagent_tool, arguments),), shows=(REPORT,), text="I start a sub-agent.")
    settings = facts.probe.subagent_settings
    return Scenario(name="subagent", moves=(start,), child_moves=(inner,), writes=writes, settings=settings)
