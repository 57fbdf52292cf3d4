"""What the agent is told of a bug: what one failing check reports. Pure.

Invariants (tests/tasks/test_injecting_pipeline.py): the same reports give the same text; no address of memory and no path of a
sandbox is in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LINES = 30  # of a report
DONE = "When done, run: submit"  # harnesses that cannot see by themselves that an agent is done are told so by the program
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def statement(repository: str, failed: Mapping[str, str]) -> str:
    """The instruction of a task. `failed`: id of a test → its report; at least one."""
    name, report = min(failed.items(), key=lambda item: (len(item[1]), item[0]))
    shown = [line.rstrip() for line in _ADDRESS.sub("0x...", report).strip().splitlines()][-LINES:]
    others = len(failed) - 1
    more = f"{others} other checks fail for the same reason. " if others > 1 else ""
    more = "Another check fails for the same reason. " if others == 1 else more
    indented = "\n".join(f"    {line}".rstrip() for line in shown)
    return (
        f"The code in this directory ({repository}) has a bug. A check that you do not have, {_words(name)!r}, reports:\n\n"
        f"{indented}\n\n{more}Find the cause and mend it in the code. What works now must go on working.\n"
        f"{DONE}"
    )


def _words(test: str) -> str:
    """The name of a test as words: "tests/test_a.py::test_one_two[3]" is "one two [3]"."""
    last = re.split(r"::|\.(?=[A-Za-z_]\w*$)", test)[-1]
    return last.removeprefix("test_").replace("_", " ").replace("[", " [").strip()
