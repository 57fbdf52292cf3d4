"""whippletree/control/contract: whole checks of a small agent, in real sandboxes."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from contract_parts import AGENT, Small

from whippletree import sandboxes
from whippletree.cli.main import main
from whippletree.configuration import toml_value
from whippletree.control.contract import check_harness
from whippletree.control.contract.grading import POINTS
from whippletree.control.contract.report import Report, as_text, checked
from whippletree.errors import ConfigurationError, HarnessError
from whippletree.harnesses import load_harness
from whippletree.protocols import HarnessFacts
from whippletree.sandboxes import SandboxConfig

ROOT = Path(__file__).parents[2]
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
    assert report.measured.cpu_seconds > 0
    assert (report.measured.peak_mb is None) is bool(sandboxes.probe().cgroups), as_text(report)
    assert report.measured.peak_mb != 0
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


async def test_a_step_limit_must_end_the_run_as_out_of_budget() -> None:
    assert (await check("Small", "steps"))["step limit"] == "pass"
    told = await check("Tireless", "step limit")
    assert told["step limit"] == "FAIL" and told["captured, delivered"] == "pass"


async def test_one_that_changes_its_history_fails_the_second_request() -> None:
    told = await check("Forgetful", "plain")
    assert (told["second request"], told["tool call"], told["parallel calls"]) == ("FAIL", "pass", "not run")


async def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is not known"):
        await check_harness("nobody")
    with pytest.raises(ConfigurationError, match="cannot be launched as 'pool'"):
        await check_harness("contract_parts:Small", launch="pool")
    with pytest.raises(HarnessError, match="is not installed"):
        await check_harness("codex", directory=Path("/nonexistent"))
    with pytest.raises(ConfigurationError, match=r"'stream-drop' is neither a scenario nor a point.*stream drop"):
        await check_harness("contract_parts:Small", only=["stream-drop"])


AGENT_FACTS = 'dialects = ["chat"]\nstreams = false\nshell_tool = "sh"\nends_at = ["overflow"]\n'


def test_an_agent_of_ones_own_is_checked_by_the_generic_adapter_with_its_own_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read_only = [[prefix, prefix] for prefix in dict.fromkeys((sys.prefix, sys.base_prefix))] + [[str(AGENT), "/opt/agent.py"]]
    settings = {
        "argv": [sys.executable, "/opt/agent.py"],
        "stdin": "{instruction}",
        "environment": {"BASE_URL": "{base_url}", "KEY": "{api_key}"},
        "read_only": read_only,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={toml_value(value)}")]
    facts = tmp_path / "facts.toml"
    facts.write_text(AGENT_FACTS)
    only = ["--only", "tool call", "--only", "context overflow", "--only", "bad arguments"]
    assert main(["harness", "check", "command", *words, "--facts", str(facts), *only, "--json"]) == 0
    (told,) = msgspec.json.decode(capsys.readouterr().out, type=list[Report])
    grades = {line.point: line.grade for line in told.lines}
    assert (grades["tool call"], grades["second request"], grades["bad arguments"]) == ("pass", "pass", "pass")
    assert (grades["context overflow"], grades["429"], grades["step limit"]) == ("differs", "not run", "not applicable")
    assert told.facts.shell_tool == "sh" and not told.whole


@pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="needs the package openai")
async def test_the_function_of_the_example_keeps_what_its_facts_say(monkeypatch: pytest.MonkeyPatch) -> None:
    example = ROOT / "examples" / "own_agent"
    data = tomllib.loads((example / "facts.toml").read_text())
    facts = msgspec.convert(msgspec.to_builtins(load_harness("callable").facts) | data, HarnessFacts)
    settings = {"function": "agent:solve", "path": str(example)}
    report = await check_harness(
        "callable", launch="process", settings=settings, facts=facts, only=["plain", "arguments", "steps"], limit=60
    )
    assert report.holds, as_text(report)
    grades = {line.point: line.grade for line in report.lines}
    assert (grades["tool call"], grades["bad arguments"], grades["step limit"]) == ("pass", "differs", "pass")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--all", "codex"], "which harness"),
        ([], "which harness"),
        (["whitebox", "--only", "plain", "--record", "x"], "--record writes whole reports"),
        (["whitebox", "codex", "--set", "step_limit=3"], "of one harness"),
        (["whitebox", "--facts", "/nonexistent.toml"], "cannot be read"),
        (["whitebox", "--only", "plan"], "did you mean plain"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["harness", "check", *words]) == 2
    assert why in capsys.readouterr().err


def test_facts_with_an_unknown_key_name_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = tmp_path / "facts.toml"
    facts.write_text('shell_tol = "sh"\n')
    assert main(["harness", "check", "command", "--facts", str(facts)]) == 2
    assert "shell_tool" in capsys.readouterr().err


def test_the_command_exits_with_0_only_where_the_contract_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["harness", "check", "contract_parts:Careless", "--only", "plain", "--json"]) == 1
    (told,) = msgspec.json.decode(capsys.readouterr().out, type=list[Report])
    assert not told.holds and not told.whole and told.lines[0].point == "reaches us only"
    assert main(["harness", "check", "contract_parts:Small", "--only", "plain"]) == 0
    assert "the contract holds; 8 points were not run" in capsys.readouterr().out
    assert main(["harness", "check", "contract_parts:Small", "--limit", "0"]) == 2
