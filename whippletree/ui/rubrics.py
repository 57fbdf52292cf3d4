"""How far judges agree with the tests, as a table for people.

Invariant (tests/cli/test_cli_rollout_grade.py): a number that the data do not give is a dash.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whippletree.control.rubrics.agreement import Agreement
from whippletree.control.rubrics.regrading import Regraded
from whippletree.ui.conversation import printable

COLUMNS = ("rubric", "scored", "failed", "mean", "passed", "not passed", "AUC", "Spearman")
MOST_PROBLEMS = 5


def print_agreements(found: Sequence[Agreement], graded: Sequence[Regraded], console: Console) -> None:
    """One line per rubric, then the first reasons for which there was no score."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    for one in found:
        numbers = (one.mean, one.passed_mean, one.others_mean, one.auc, one.spearman)
        table.add_row(one.rubric, str(one.scored), str(one.failed), *map(_told, numbers))
    console.print(table)
    problems = list(dict.fromkeys((one.score.name, one.score.problem) for one in graded if one.score.score is None))
    for name, problem in problems[:MOST_PROBLEMS]:
        console.print(Text(printable(f"{name}: no score: {problem}"), style="red"))


def _told(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
