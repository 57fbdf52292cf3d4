"""What a check found, as data, as text, as JSON.

Invariants (tests/control/test_contract_report.py): a report holds exactly if no line of it is FAIL (points that were not run
are not judged); what is written is read back equal; every FAIL has a next step.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from whippletree.protocols import HarnessFacts
from whippletree.types import Struct

Grade = Literal["pass", "differs", "FAIL", "not applicable", "not run"]
SHOWN: dict[str, str] = {"differs": "differs as the facts say"}


class Line(Struct):
    """One point of the contract. `seen`: what was seen, in words; `next_step`: what to do about it ("" where nothing is).

    Example: Line(point="stream drop", grade="differs", seen="the run ended: APIError", next_step="")
    """

    point: str
    grade: Grade
    seen: str
    next_step: str = ""


class Measured(Struct):
    """What one plain run took: seconds until its first request, CPU-seconds in all, most memory held in MiB (None where
    nothing here counts it).

    Example: Measured(start_seconds=1.2, cpu_seconds=2.3, peak_mb=365)
    """

    start_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mb: int | None = None


class Report(Struct):
    """The report of one harness. `sandbox`: the backend that it ran in; `facts` are those of the adapter's that
    were looked at.

    Example: Report(harness="codex", version="0.171.0", launch="process", sandbox="bubblewrap", facts=HarnessFacts(...),
                    lines=(Line(...),), measured=Measured(...))
    """

    harness: str
    version: str
    launch: str
    sandbox: str
    facts: HarnessFacts
    lines: tuple[Line, ...]
    measured: Measured = Measured()

    @property
    def holds(self) -> bool:
        """Whether the contract holds in what was run: no line is FAIL."""
        return all(line.grade != "FAIL" for line in self.lines)

    @property
    def whole(self) -> bool:
        """Whether every point was looked at that applies."""
        return all(line.grade != "not run" for line in self.lines)


def checked(facts: HarnessFacts) -> HarnessFacts:
    """The facts that a check looks at; what is only told is left out."""
    told = HarnessFacts(dialects=facts.dialects, streams=facts.streams)
    names = ("sampled_turn", "thread_headers", "exit_code", "variations", "fixed_prompt_chars", "notes")
    return msgspec.structs.replace(facts, **{name: getattr(told, name) for name in names})


def as_text(report: Report) -> str:
    """The report for a terminal, one line per point, next steps below theirs."""
    width = max((len(line.point) for line in report.lines), default=0)
    told = [f"{report.harness} {report.version}, {report.launch}, in a {report.sandbox} sandbox"]
    for line in report.lines:
        told.append(f"  {line.point:<{width}}  {SHOWN.get(line.grade, line.grade)}: {line.seen}")
        if line.next_step:
            told.append(f"  {'':<{width}}    next: {line.next_step}")
    failed, left = (sum(line.grade == one for line in report.lines) for one in ("FAIL", "not run"))
    end = (
        "the contract holds"
        if report.holds
        else f"the contract does not hold: {failed} of {len(report.lines) - left} points fail"
    )
    told.append(end if report.whole else f"{end}; {left} points were not run")
    return "\n".join(told)
