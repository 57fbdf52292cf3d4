"""The families of the shell suite by name, and the suite cut from them.

Invariants (tests/tasks/test_suites_shell.py):
- the same settings give the same tasks, byte for byte;
- no two tasks, training or held-out, have the same key;
- for a sample of every family and grade the oracle passes, doing nothing fails, and the untouched environment fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from whippletree.tasks.suites.config import ShellFamily
from whippletree.tasks.suites.cutting import Cell, Suite
from whippletree.tasks.suites.shell import archives, files, finding, permissions, tables, text
from whippletree.tasks.suites.shell.parts import Draw, Exercise, draft
from whippletree.tasks.writing import Draft, Limits

Maker = Callable[[Draw], Exercise]
FAMILIES: Mapping[str, Sequence[Maker]] = {
    "files": files.GRADES,
    "text": text.GRADES,
    "permissions": permissions.GRADES,
    "archives": archives.GRADES,
    "tables": tables.GRADES,
    "finding": finding.GRADES,
}


def shell_suite(family: ShellFamily) -> Suite:
    """The suite that these settings cut. Raises ConfigurationError."""
    cells = [_cell(name, grade) for grade in family.grades for name in family.families]
    limits = Limits(agent=family.agent_timeout_sec, verifier=family.verifier_timeout_sec)
    return Suite("shell", cells, train=family.train, heldout=family.heldout, seed=family.seed, limits=limits)


def _cell(name: str, grade: int) -> Cell:
    make = FAMILIES[name][grade - 1]

    def drafted(seed: str, task_id: str) -> Draft:
        labels: dict[str, str | int | float] = {
            "suite": "shell",
            "family": name,
            "grade": grade,
            "difficulty": f"grade {grade}",
        }
        return draft(make(Draw(seed)), task_id, labels)

    return Cell(f"{name}-{grade}", drafted)
