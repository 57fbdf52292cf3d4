"""whippletree/control/contract: whole checks of a small agent, in real sandboxes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from contract_parts import Small

from whippletree import sandboxes
from whippletree.cli.main import main
from whippletree.control.contract import check_harness
from whippletree.control.contract.grading import POINTS
from whippletree.control.contract.report import Report, as_text, checked
from whippletree.errors import ConfigurationError, HarnessError
from whippletree.sandboxes import SandboxConfig

ISOLATED = sandboxes.choose(SandboxConfig()).kind == "bubblewrap"
pytestmark = [pytest.mark.timeout(240), pytest.mark.skipif(not ISOLATED, reason="bubblewrap does not work here")]


async def check(kind: str, *only: str) -> dict[str, str]:
    report = await check_harness(f"contract_parts:{kind}", only=only, limit=60)
    assert [line.point for line in report.lines] == list(POINTS)
    return {line.point: line.grade for line in report.lines}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made; its path is short, because sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="wtc-") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)
        monkeypatch.undo()


async def test_a_harness_that_keeps_the_contract_passes_in_every_point_that_applies(place: Path, tmp_path: Path) -> None:
    report = await check_harness("contract_parts:Small", limit=60, keep=tmp_path / "kept")
    assert report.holds, as_text(report)
    grades = {line.point: line.grade for line in report.lines}
    absent = {"other dialects", "compaction", "sub-agents"} | (set() if os.geteuid() == 0 else {"reaches us only"})
    assert {point for point, grade in grades.items() if grade == "not applicable"} == absent, as_text(report)
    assert {point for point, grade in grades.items() if grade == "differs"} == {"context overflow"}
    assert report.facts == checked(Small.facts) and report.sandbox == "bubblewrap" and report.launch == "process"
    assert report.measured.cpu_seconds > 0 and report.measured.peak_mb > 0
    assert list(place.glob("whippletree-check-*")) == []
    kept = {path.name for path in (tmp_path / "kept" / "plain").rglob("*")}
    assert {"agent.log", "account.json", "store"} <= kept


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees name look-ups")
async def test_one_that_looks_for_others_fails() -> None:
    report = await check_harness("contract_parts:Nosy", only=["plain"], limit=60)
    line = next(line for line in report.lines if line.point == "reaches us only")
    assert line.grade == "FAIL" and "updates.example" in line.seen and not line.seen.startswith("0 packets"), line
    assert line.next_step


async def test_one_that_leaves_a_process_fails() -> None:
    assert (await check("Careless", "plain"))["clean exit"] == "FAIL"


async def test_giving_up_differs_where_the_facts_say_so_and_fails_where_they_do_not() -> None:
    points = ("429", "500", "stream drop", "context overflow")
    told = await check("Hasty", "plain", "429", "500", "drop", "overflow")
    assert [told[point] for point in points] == ["differs"] * 4
    boast = await check("Boastful", "plain", "429", "overflow")
    assert (boast["429"], boast["context overflow"]) == ("FAIL", "differs")


async def test_one_that_changes_its_history_fails_the_second_request() -> None:
    told = await check("Forgetful", "plain")
    assert (told["second request"], told["tool call"], told["parallel calls"]) == ("FAIL", "pass", "FAIL")


async def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is not known"):
        await check_harness("nobody")
    with pytest.raises(ConfigurationError, match="cannot be launched as 'pool'"):
        await check_harness("contract_parts:Small", launch="pool")
    with pytest.raises(HarnessError, match="is not installed"):
        await check_harness("codex", directory=Path("/nonexistent"))


def test_the_command_exits_with_0_only_where_the_contract_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = ["--record", str(tmp_path / "reports")]
    assert main(["harness", "check", "contract_parts:Small", "--only", "plain", "--json", *record]) == 1
    (told,) = msgspec.json.decode(capsys.readouterr().out, type=list[Report])
    assert not told.holds and told.lines[0].point == "reaches us only"
    assert json.loads((tmp_path / "reports" / "small.json").read_text())["harness"] == "small"
    assert main(["harness", "check", "contract_parts:Small", "--limit", "0"]) == 2
