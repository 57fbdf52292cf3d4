"""What the grading of all points has in common: the runs of a check, by scenario, and the lines that come of them. Pure.

Invariants (tests/control/test_contract_report.py): a point whose scenario was left out is "not run", never FAIL; one whose
scenario could not be run is FAIL with its error; a line has a next step exactly if it is FAIL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from whippletree.control.contract.report import Grade, Line, Measured
from whippletree.control.contract.world import Run
from whippletree.protocols import HarnessFacts
from whippletree.traces import Node

MESSAGE = 160  # characters of a message that a line has
ADAPTER = "mend the adapter, or its facts if they are wrong"


@dataclass(frozen=True)
class Seen:
    """The facts, the runs of each scenario by its name, and the names of scenarios that apply and were left out."""

    facts: HarnessFacts
    runs: Mapping[str, Sequence[Run]]
    skipped: Collection[str] = ()

    def all(self) -> Iterator[tuple[str, Run]]:
        """Every run with the name of its scenario."""
        for name, several in self.runs.items():
            for run in several:
                yield name, run

    def of(self, point: str, name: str, look: Callable[[Run], Line]) -> Line:
        """What `look` says of a scenario's run; another line where there is none, or it could not be run."""
        run = next(iter(self.runs.get(name, ())), None)
        if run is None and name in self.skipped:
            return Line(point=point, grade="not run", seen=f"needs the scenario {name}")
        if run is None:
            return graded(point, False, "its scenario was not run", "run the check again")
        return graded(point, False, run.error, "mend that first") if run.error else look(run)

    def any(self, point: str, look: Callable[[Sequence[tuple[str, Run]]], Line], names: Collection[str] = ()) -> Line:
        """What `look` says of all runs that could be run (of the scenarios `names`, where some are given)."""
        found = [(name, run) for name, run in self.all() if not names or name in names]
        whole = [(name, run) for name, run in found if not run.error]
        if whole:
            return look(whole)
        if found:
            return graded(point, False, found[0][1].error, "mend that first")
        first = next(iter(names), "plain")
        return self.of(point, first, lambda run: look([(first, run)]))


def graded(point: str, held: bool, seen: str, next_step: str = ADAPTER, *, wanted: bool = True) -> Line:
    """`held`: what was seen is what the facts say; `wanted`: it is also what one wants of a harness."""
    found: Grade = "FAIL" if not held else "pass" if wanted else "differs"
    return Line(point=point, grade=found, seen=seen, next_step="" if held else next_step)


def absent(point: str, why: str) -> Line:
    """The line of a point that does not apply."""
    return Line(point=point, grade="not applicable", seen=why)


def told(run: Run) -> str:
    """How a run ended, in words."""
    if run.error:
        return run.error
    if run.end.timed_out:
        return f"it did not end within its limit ({run.seconds:.0f} s)"
    if run.end.cause is not None:
        return run.end.cause.message
    result = run.end.result
    words = " ".join(result.message.split())
    words = words[-MESSAGE:] if words.startswith("Traceback") else words[:MESSAGE]  # what was raised stands last
    return f"{result.exit_status}: {words}" if result.crashed and words else result.exit_status


def measured(run: Run | None) -> Measured:
    """What the plain run took."""
    if run is None or run.usage is None:
        return Measured()
    start = max(0.0, run.first_request - run.began) if run.first_request is not None else 0.0
    peak = run.usage.memory_peak_bytes
    return Measured(
        start_seconds=round(start, 2),
        cpu_seconds=round(run.usage.cpu_seconds, 2),
        peak_mb=None if peak is None else peak >> 20,
    )


def main_nodes(run: Run) -> list[Node]:
    """The calls of a run's main conversation."""
    return [node for node in run.trace.nodes if node.role == "main"]
