"""whippletree/cli/numbers.py and the bounds of settings: a number that makes no sense is refused before anything begins."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import pytest

from whippletree.cli.main import main
from whippletree.cli.numbers import amount, count, natural, seconds
from whippletree.configuration import Config, convert
from whippletree.errors import ConfigurationError
from whippletree.harnesses import NAMES, load_harness
from whippletree.loop.config import RunConfig
from whippletree.loop.grid.config import GridConfig
from whippletree.loop.sft.config import SftConfig


@pytest.mark.parametrize(
    ("kind", "good", "wrong"),
    [
        (natural, "0", ["-1", "1.5", "x", ""]),
        (count, "1", ["0", "-1", "x"]),
        (amount, "0", ["-0.5", "nan", "inf", "x"]),
        (seconds, "0.5", ["0", "-1", "nan"]),
    ],
)
def test_a_number_below_its_least_is_an_error(kind, good: str, wrong: list[str]):
    assert kind(good) == float(good)
    for text in wrong:
        with pytest.raises(argparse.ArgumentTypeError):
            kind(text)


@pytest.mark.parametrize(
    "argv",
    [
        ("rollouts", "list", "nothere", "--limit", "-3"),
        ("rollouts", "grade", "nothere", "--limit", "-3"),
        ("tasks", "import", "questions", "rows.jsonl", "--to", "out", "--tolerance", "-1"),
        ("tasks", "import", "swe", "rows.jsonl", "--to", "out", "--mirrors", ".", "--seconds", "0"),
    ],
)
def test_the_option_is_named(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(list(argv))
    assert f"argument {argv[-2]}: '{argv[-1]}' is no" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(NAMES))
def test_no_setting_of_a_harness_takes_a_negative_number(name: str):
    kind = load_harness(name).settings
    if kind is not None:
        _refuses_negative_numbers(kind)


def _refuses_negative_numbers(kind: type[Config]) -> None:
    for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        if isinstance(field.type, msgspec.inspect.IntType | msgspec.inspect.FloatType):
            with pytest.raises(ConfigurationError, match=field.name):
                convert(kind, {field.name: -1}, "test")


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("sampling", "temperature", -1.0),
        ("sampling", "max_tokens", -32),
        ("sampling", "max_tokens", 0),
        ("sampling", "top_p", 1.5),
        ("loop", "steps", -1),
        ("loop", "group_size", 0),
        ("learner", "learning_rate", -0.1),
        ("engine", "slots", -1),
        ("run", "seed", -1),
    ],
)
def test_no_run_begins_with_a_number_that_makes_no_sense(section: str, key: str, value: float):
    plain = {"sources": [{"name": "trail", "tasks": {"kind": "trail"}}]}
    table = {key: value} | ({"kind": "embedded"} if section == "engine" else {})
    with pytest.raises(ConfigurationError, match=rf"{section}\.{key}"):
        convert(RunConfig, plain | {section: table}, "run.toml")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "/tmp/x"])
def test_a_name_cannot_leave_the_directory_or_be_it(name: str):
    source = {"name": "trail", "tasks": {"kind": "trail"}}
    grid = {"models": [{"name": "m", "model": {"kind": "tiny"}}], "harnesses": [{"name": "h"}], "sources": [source]}
    for kind, plain in (
        (RunConfig, {"run": {}, "sources": [source]}),
        (GridConfig, {"grid": {}} | grid),
        (SftConfig, {"sft": {}}),
    ):
        section = next(iter(plain))
        with pytest.raises(ConfigurationError, match=rf"{section}\.name: Expected a name without `/` that is not empty"):
            convert(kind, plain | {section: {"name": name}} | ({"data": ["x"]} if kind is SftConfig else {}), "test")
        good = plain | {section: {"name": "my run ü.1"}} | ({"data": ["x"]} if kind is SftConfig else {})
        assert convert(kind, good, "test") is not None


def test_what_a_name_in_a_grid_may_hold_is_said_in_words():
    grid = {"models": [{"name": "a b", "model": {"kind": "tiny"}}], "harnesses": [{"name": "h"}], "sources": []}
    with pytest.raises(ConfigurationError, match=r"models\.0\.name: Expected a name of letters, digits, `-` and `_` \("):
        convert(GridConfig, grid, "test")


def test_settings_of_a_check_are_looked_at_before_anything_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["harness", "check", "whitebox", "--set", "stepp_limit=4", "--keep", str(tmp_path / "kept")]) == 2
    out, err = capsys.readouterr()
    assert "unknown key stepp_limit (did you mean step_limit?)" in err and out == "" and not (tmp_path / "kept").exists()
