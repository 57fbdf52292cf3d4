"""Every configuration of the examples loads, and so does each that a page builds with --set, up to those of real models."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import msgspec
import pytest

from whippletree.cli.inspecting import load_any_file
from whippletree.cli.main import build_parser
from whippletree.configuration import check_keys
from whippletree.engines.config import VllmConfig
from whippletree.harnesses import load_harness
from whippletree.loop.config import RunConfig
from whippletree.protocols import HarnessFacts

ROOT = Path(__file__).parents[2]
FACTS = "facts.toml"  # what is known of an agent, for a check of it
FILES = sorted(path for path in (ROOT / "examples").rglob("*.toml") if path.name != FACTS)
PAGES = sorted((ROOT / "examples").rglob("README.md"))


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def commands(page: Path) -> list[list[str]]:
    """Arguments of each `whippletree` command of a page's shell blocks, comments and what comes after a pipe left out."""
    text = "\n".join(re.findall(r"^```sh\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE))
    lines = [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]
    return [line[1:] for line in lines if line[:1] == ["whippletree"]]


def configured(page: Path) -> list[tuple[Path, list[str]]]:
    """The configuration file and overrides of each command that has them."""
    found = []
    for arguments in commands(page):
        given = build_parser().parse_args(arguments)
        candidates = [*getattr(given, "data", []), getattr(given, "run_file", None), getattr(given, "measure", None)]
        paths = [Path(path) for path in candidates if path is not None and str(path).endswith(".toml")]
        found += [(path, list(getattr(given, "overrides", []))) for path in paths]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_configuration_loads(path: Path):
    load_any_file(path, [])


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob(FACTS)), ids=lambda path: path.parent.name)
def test_what_is_known_of_an_agent_goes_over_what_is_known_of_any(path: Path):
    data = tomllib.loads(path.read_text())
    check_keys(HarnessFacts, data, str(path), "")
    assert msgspec.convert(msgspec.to_builtins(load_harness("callable").facts) | data, HarnessFacts).shell_tool


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_every_configuration_that_a_page_builds_loads(page: Path):
    found = configured(page)
    assert found
    for path, overrides in found:
        load_any_file(path, overrides)


@pytest.mark.parametrize("name", ["coding_agent", "general_agent", "multi_harness", "search_agent"])
def test_a_page_has_a_configuration_for_a_real_model(name: str):
    built = [load_any_file(path, overrides) for path, overrides in configured(ROOT / "examples" / name / "README.md")]
    real = [config for config in built if isinstance(config, RunConfig) and isinstance(config.engine, VllmConfig)]
    assert real
    for config in real:
        config.check()
        assert config.learner.max_logprob_diff >= 0.1 or config.engine.dtype == "float32"  # else a bf16 engine ends the run
        assert config.sampling.max_tokens >= 512
        assert config.engine.context > config.sampling.max_tokens
