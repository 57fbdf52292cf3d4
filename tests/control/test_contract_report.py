"""whippletree/control/contract/grading.py, report.py and page.py"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from whippletree.control.contract.grading import NEEDS, POINTS, grade
from whippletree.control.contract.page import load_reports, page
from whippletree.control.contract.report import Line, Report, as_text, checked
from whippletree.control.contract.scenarios import known, scenarios
from whippletree.control.contract.seen import measured, told
from whippletree.control.contract.world import Run
from whippletree.control.policy import AgentEnd
from whippletree.errors import ConfigurationError
from whippletree.harnesses import NAMES, load_harness
from whippletree.protocols import ConfiguredHarness, HarnessFacts, HarnessResult
from whippletree.types import Usage

FACTS = HarnessFacts(dialects=("chat",), streams=True, shell_tool="sh", ends_at=("429",))
REPORTS = Path(__file__).parents[2] / "docs" / "contract"


def ended(name: str, *, complete: bool = True, crashed: bool = False, error: str = "", timed_out: bool = False) -> Run:
    scenario = next(one for one in scenarios(FACTS, dialect_setting=False) if one.name == name)
    result = HarnessResult(exit_status="Ended", crashed=crashed, message="so it said" if crashed else "")
    run = Run(scenario=scenario, token=f"t-{name}", end=AgentEnd(result=result, timed_out=timed_out), error=error)
    run.complete, run.written = complete, dict(scenario.writes) if complete else {}
    return run


def graded(*runs: Run) -> dict[str, Line]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.scenario.name, []).append(run)
    lines = grade(FACTS, found)
    assert [line.point for line in lines] == list(POINTS)
    assert all(line.next_step for line in lines if line.grade == "FAIL")
    assert not any(line.next_step for line in lines if line.grade != "FAIL")
    return {line.point: line for line in lines}


def test_what_could_not_be_run_fails_with_its_error() -> None:
    lines = graded(*(ended(one.name, error="no sandbox") for one in scenarios(FACTS, dialect_setting=False)))
    applies = [line for line in lines.values() if line.grade != "not applicable"]
    assert len(applies) == len(POINTS) - 4 and all(line.grade == "FAIL" and line.seen == "no sandbox" for line in applies)
    assert all(line.grade in ("FAIL", "not applicable") for line in graded().values())


def test_what_was_left_out_is_not_run_and_what_is_missing_fails() -> None:
    names = [one.name for one in scenarios(FACTS)]
    lines = {line.point: line for line in grade(FACTS, {"plain": [ended("plain")]}, [name for name in names if name != "429"])}
    assert lines["500"].grade == "not run" and "500" in lines["500"].seen and not lines["500"].next_step
    assert lines["429"].grade == "FAIL" and lines["tool call"].grade == "pass" and lines["compaction"].grade == "not applicable"
    nothing = grade(FACTS, {}, names)
    assert {line.grade for line in nothing} == {"not run", "not applicable"}


def test_every_scenario_is_needed_by_a_point() -> None:
    assert {name for needs in NEEDS.values() for name in needs} == set(known())


def test_giving_up_is_held_against_the_facts() -> None:
    for complete, crashed, timed_out, expected in (
        (True, False, False, "FAIL"),  # it survives what its facts say it does not
        (False, True, False, "differs"),
        (False, False, True, "FAIL"),
    ):
        run = ended("429", complete=complete, crashed=crashed, timed_out=timed_out)
        run.asked = [msgspec.convert({"method": "POST", "path": "/", "status": 429, "at": 1.0, "fault": "429"}, type=_asked())]
        assert graded(run)["429"].grade == expected
    assert "did not come about" in graded(ended("429"))["429"].seen


def test_one_that_says_it_ran_out_gave_up_whatever_it_did_afterwards() -> None:
    run = ended("overflow")
    run.overflowed, run.end = True, AgentEnd(result=HarnessResult(exit_status="Full", ran_out="budget"))
    assert graded(run)["context overflow"].grade == "FAIL" and "it gave up" in graded(run)["context overflow"].seen
    facts = msgspec.structs.replace(FACTS, ends_at=("overflow",))
    lines = {line.point: line.grade for line in grade(facts, {"overflow": [run]})}
    assert lines["context overflow"] == "differs"


def _asked() -> type:
    from whippletree.control.contract.tap import Asked

    return Asked


def test_a_job_that_was_not_done_fails_and_a_crash_is_told() -> None:
    assert graded(ended("plain"))["tool call"].grade == "pass"
    line = graded(ended("plain", crashed=True))["tool call"]
    assert line.grade == "FAIL" and "Ended: so it said" in line.seen
    assert graded(ended("plain", complete=False))["tool call"].grade == "FAIL"
    assert "did not end within its limit" in told(ended("plain", timed_out=True))


def test_processes_that_are_left_fail() -> None:
    run = ended("plain")
    run.usage = Usage(cpu_seconds=1.5, memory_peak_bytes=3 << 20, processes=1, disk_bytes=0)
    run.began, run.first_request = 10.0, 11.25
    assert graded(run)["clean exit"].grade == "FAIL"
    assert measured(run) == msgspec.structs.replace(measured(None), start_seconds=1.25, cpu_seconds=1.5, peak_mb=3)
    assert graded(run)["cost"].seen == "1.2 s to the first request, 1.5 CPU-seconds, 3 MiB"
    run.usage = msgspec.structs.replace(run.usage, memory_peak_bytes=None)  # no cgroup counts it
    assert graded(run)["cost"].seen == "1.2 s to the first request, 1.5 CPU-seconds, memory not counted"


def test_where_the_network_cannot_be_seen_the_point_is_not_applicable() -> None:
    run = ended("plain")
    assert graded(run)["reaches us only"].grade == "not applicable"
    run.unrouted, run.lookups = 0, []
    assert graded(run)["reaches us only"].grade == "pass"
    run.lookups = ["updates.example"]
    assert "updates.example" in graded(run)["reaches us only"].seen


def report(grade_: str = "pass") -> Report:
    lines = tuple(Line(point=point, grade=grade_, seen="a <b> | c") for point in POINTS)  # type: ignore[arg-type]
    return Report(harness="h", version="1", launch="process", sandbox="bubblewrap", facts=FACTS, lines=lines)


def test_a_report_holds_exactly_where_no_line_fails_and_is_read_back_equal() -> None:
    assert report().holds and report("differs").holds and report("not applicable").holds and not report("FAIL").holds
    assert report("not run").holds and not report("not run").whole and report("FAIL").whole
    assert f"{len(POINTS)} points were not run" in as_text(report("not run"))
    for one in (report(), report("FAIL")):
        assert msgspec.json.decode(msgspec.json.encode(one), type=Report) == one
    assert "the contract holds" in as_text(report()) and f"{len(POINTS)} of {len(POINTS)} points fail" in as_text(
        report("FAIL")
    )


def test_the_page_has_a_row_for_each_point_and_a_damaged_report_is_named(tmp_path: Path) -> None:
    text = page([report("differs")])
    assert all(f"| {point} | differs |" in text for point in POINTS[:-1]) and "a &lt;b> \\| c" in text
    (tmp_path / "h.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"h\.json"):
        load_reports(tmp_path)


def test_the_page_in_docs_is_what_the_reports_in_docs_give() -> None:
    recorded = load_reports(REPORTS)
    assert recorded
    advice = "run `python -m whippletree.control.contract.page docs/contract > docs/harness-contract.md`"
    assert (REPORTS.parent / "harness-contract.md").read_text(encoding="utf-8") == page(recorded), advice


@pytest.mark.parametrize("recorded", load_reports(REPORTS), ids=lambda one: one.harness)
def test_a_recorded_report_is_of_the_adapter_as_it_is_now(recorded: Report) -> None:
    assert recorded.harness in NAMES
    harness = load_harness(recorded.harness)
    advice = f"check it again: `whippletree harness check {recorded.harness} --record docs/contract`"
    assert (recorded.version, recorded.facts) == (harness.version, checked(harness.facts)), advice
    assert [line.point for line in recorded.lines] == list(POINTS) and recorded.whole, advice


def test_there_is_a_whole_report_of_each_harness_as_it_ships_and_all_hold() -> None:
    """What a generic adapter starts is somebody's own: no report of it says anything of the adapter."""
    reports = {one.harness: one for one in load_reports(REPORTS)}
    assert set(reports) == {name for name in NAMES if not isinstance(load_harness(name), ConfiguredHarness)}
    assert [name for name, one in reports.items() if not (one.whole and one.holds)] == []
    assert {name: one.version for name, one in reports.items()} == {name: load_harness(name).version for name in reports}
