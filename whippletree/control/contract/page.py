"""The docs' page of results: `python -m whippletree.control.contract.page docs/contract > docs/harness-contract.md`.

It is made of the reports that `whippletree harness check NAME --record docs/contract` wrote.

Invariants (tests/control/test_contract_report.py): the page in docs is what the reports in docs give; a report's facts and
version are those of the adapter now, so that a changed adapter must be checked again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from whippletree.control.contract.grading import POINTS
from whippletree.control.contract.report import SHOWN, Line, Report
from whippletree.errors import ConfigurationError

_MARKS = {"pass": "pass", "differs": "differs", "FAIL": "**FAIL**", "not applicable": "–"}
_MEANING = {
    "reaches us only": "no packet and no name look-up goes anywhere but to the gateway, in all runs",
    "dialect": "its calls come in the dialect that its facts name first",
    "other dialects": "the same run works in each further dialect, set by `dialect`",
    "streaming": "its main calls are streamed, or not, as its facts say",
    "captured, delivered": "every reply that it got is on the record, and delivered",
    "side calls": "calls beside the main conversation, as its facts say",
    "tool call": "a call of its shell tool runs, and the model is shown what it printed; without tools, an edit is applied",
    "parallel calls": "two calls in one turn both run",
    "bad arguments": "after arguments that are no JSON, or an edit that cannot be applied, it goes on",
    "429": "after a 429 with Retry-After it asks again",
    "500": "after a 500 it asks again",
    "stream drop": "after a reply that breaks off in its middle it goes on",
    "context overflow": "after a prompt that does not fit it goes on, by compaction",
    "second request": "it goes on from the exact ids of the first one's prompt and reply, of a model that thinks",
    "compaction": "the summary is found to be one, and what follows belongs to the main conversation",
    "sub-agents": "a sub-agent's calls are told from the main ones",
    "step limit": "with `step_limit` it ends after so many calls, as out of budget, and all of them are on the record",
    "trajectory": "its own record, as ATIF, tells of the captured calls, turn by turn: texts, calls and token counts",
    "clean exit": "it ends by itself, and no process is left",
    "two at once": "two attempts at the same time do not touch each other's calls or files",
    "cost": "of a run with one tool call, on a shared machine with two cores",
}


def load_reports(directory: Path) -> list[Report]:
    """The reports of a folder, by the harness's name. Raises ConfigurationError that names the file."""
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Report))
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"{path} is no report: {error}", "write it again: harness check --record") from error
    return sorted(found, key=lambda report: report.harness)


def page(reports: Sequence[Report]) -> str:
    """The page, in Markdown."""
    told = [
        "# The contract of a harness",
        "",
        "`whippletree harness check NAME` runs a harness in sandboxes against the gateway and a scripted engine, and grades",
        "what it sees against the adapter's facts: pass; differs as the facts say; FAIL (what was seen is not what the facts",
        "say); not applicable (–). It exits with 0 only where no point fails. [Checking a harness](harness-check.md) says",
        "how it works.",
        "",
        "The tables are made of recorded reports:",
        "`python -m whippletree.control.contract.page docs/contract > docs/harness-contract.md`.",
        "",
        "| point | " + " | ".join(f"{report.harness} {report.version}" for report in reports) + " |",
        "|---|" + "---|" * len(reports),
    ]
    for point in POINTS[:-1]:
        told.append(f"| {point} | " + " | ".join(_MARKS[_line(report, point).grade] for report in reports) + " |")
    told += ["", "What a point asks for:", "", "| point | passes where |", "|---|---|"]
    told += [f"| {point} | {_MEANING[point]} |" for point in POINTS]
    told += [
        "",
        "## Cost",
        "",
        "| harness | seconds to the first request | CPU-seconds | most memory, MiB |",
        "|---|---|---|---|",
    ]
    for report in reports:
        cost = report.measured
        memory = "–" if cost.peak_mb is None else cost.peak_mb
        told.append(f"| {report.harness} | {cost.start_seconds:.1f} | {cost.cpu_seconds:.1f} | {memory} |")
    for report in reports:
        told += ["", f"## {report.harness} {report.version}", "", f"Launched as {report.launch}, in {report.sandbox}.", ""]
        told += [
            f"- {line.point}, {SHOWN.get(line.grade, line.grade)}: {_inline(line.seen)}"
            for line in report.lines
            if line.point != "cost"
        ]
    return "\n".join(told) + "\n"


def _line(report: Report, point: str) -> Line:
    absent = Line(point=point, grade="not applicable", seen="")
    return next((line for line in report.lines if line.point == point), absent)


def _inline(text: str) -> str:
    return " ".join(text.replace("<", "&lt;").replace("|", "\\|").replace("[", "\\[").split())


if __name__ == "__main__":
    sys.stdout.write(page(load_reports(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/contract"))))
