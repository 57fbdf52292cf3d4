"""whippletree/cli/harnesses.py: list, show, install; with a stand-in for npm, so that nothing is fetched"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from whippletree.cli.harnesses import HarnessReport
from whippletree.cli.main import main
from whippletree.configuration import load
from whippletree.errors import ConfigurationError
from whippletree.harnesses import NAMES
from whippletree.loop.config import RunConfig

NPM = """#!/bin/sh
while [ "$1" != --prefix ]; do shift; done
folder=$2
for word in "$@"; do case "$word" in @openai/codex@*) version=${word##*@};; esac; done
mkdir -p "$folder/node_modules/@openai/codex"
echo "{\\"version\\": \\"$version\\"}" > "$folder/node_modules/@openai/codex/package.json"
"""


@pytest.fixture(autouse=True)
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "npm").write_text(NPM)
    (programs / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def reports(text: str) -> dict[str, HarnessReport]:
    return {report.name: report for report in msgspec.json.decode(text, type=list[HarnessReport])}


def test_one_is_installed_and_then_listed_shown_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["harness", "list", "--json"]) == 0
    before = reports(capsys.readouterr().out)
    assert set(before) == set(NAMES) and not before["codex"].installed
    assert main(["harness", "install", "codex"]) == 0
    folder = tmp_path / "cache/whippletree/harnesses" / f"codex-{before['codex'].version}"
    assert capsys.readouterr().out == f"codex {before['codex'].version}: {folder}\n"
    assert main(["harness", "list", "--json"]) == 0
    after = reports(capsys.readouterr().out)
    assert after["codex"].installed and after["codex"].folder == str(folder)
    assert main(["harness", "show", "codex"]) == 0
    assert f"installed: {folder}\n" in capsys.readouterr().out
    assert main(["harness", "install", "--verify", "--json", "codex"]) == 0
    assert list(reports(capsys.readouterr().out)) == ["codex"]
    (folder / "node_modules/@openai/codex/package.json").write_text("{}")
    assert main(["harness", "install", "--verify", "codex"]) == 1
    assert "not as it was installed" in capsys.readouterr().err


def test_another_directory_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["harness", "install", "codex", "--directory", str(tmp_path / "here"), "--json"]) == 0
    (report,) = reports(capsys.readouterr().out).values()
    assert report.installed and Path(report.folder).parent == tmp_path / "here"
    assert main(["harness", "show", "codex", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["installed"] is False


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("install", "kodex"), "harness 'kodex' is not known"),
        (("install", "mini-swe-agent"), "needs no folder of its own"),
        (("show", "nothing:Here"), "check that the module can be imported"),
    ],
)
def test_what_cannot_be_done_is_told(arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["harness", *arguments]) == 2
    assert told in capsys.readouterr().err


# --- run files -----------------------------------------------------------------------------------------------------------

RUN = """
[[sources]]
name = "a"
tasks = { kind = "trail" }
harness = { name = "codex", launch = "process", settings = { system_promt = "x" } }
"""


def test_settings_of_a_harness_are_checked_before_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    assert main(["config", "check", str(path)]) == 2
    assert "sources.0.harness.settings" in (told := capsys.readouterr().err) and "system_prompt" in told
    path.write_text(RUN.replace("promt", "prompt"))
    assert main(["config", "check", str(path)]) == 0


def test_variants_of_a_harness_are_checked_before_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    right = RUN.replace("promt", "prompt").replace("launch =", 'variants.terse = { system_prompt = "y" }, launch =')
    path.write_text(right)
    assert main(["config", "check", str(path)]) == 0
    path.write_text(right.replace('"y"', "7"))
    assert main(["config", "check", str(path)]) == 2
    assert "sources.0.harness.settings with variant terse: system_prompt" in capsys.readouterr().err


def test_a_source_cannot_choose_a_launch_where_attempts_are_jobs(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    with pytest.raises(ConfigurationError, match=r"sources\.harness\.launch: .*every attempt is a Job"):
        load(RunConfig, path, ["control.launch=kubernetes"])
