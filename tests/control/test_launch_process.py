"""Harnesses as processes: their standard input, output and records (whippletree/control/launch.py, records.py)"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from whippletree import sandboxes
from whippletree.control import records
from whippletree.control.config import ControlConfig, HarnessBinding
from whippletree.control.launch import CUT, HIDDEN, OUTPUT_LIMIT, Launchers, PoolLauncher, ProcessLauncher
from whippletree.control.policy import AgentEnd
from whippletree.errors import ConfigurationError
from whippletree.harnesses.packages import Adapter
from whippletree.protocols import AttemptSpec, HarnessResult, LaunchPlan, Limits, Sandbox, SandboxSpec
from whippletree.types import RolloutSpec

KEY = "wt-secret-key"
HOME = "/home/agent"


class Shell(Adapter):
    """Runs the script of its settings; what it was handed tells the tests what the launcher did."""

    name = "shell"
    version = "1"
    settings = None

    def __init__(self, **plan: object) -> None:
        self.extra = plan
        self.handed: Mapping[str, bytes] = {}

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        return LaunchPlan(argv=("/bin/sh", "-c", str(spec.settings["script"])), **self.extra)  # type: ignore[arg-type]

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        return HarnessResult(exit_status=f"exit {exit_code}", message=output)

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        self.handed = records
        if output == "unreadable":
            raise ValueError("no account")
        return json.dumps({"told": sorted(records), "key": KEY}).encode() if records else None


Run = Callable[..., Awaitable[AgentEnd]]


@pytest.fixture(params=["process", "auto"])
async def box(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    spec = SandboxSpec(sandbox_id="launch", limits=Limits(memory_mb=512))
    made = sandboxes.create(
        sandboxes.SandboxConfig(root=str(tmp_path / "boxes"), kind=request.param), spec, gateway=("127.0.0.1", 1)
    )
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def run(box: Sandbox, tmp_path: Path) -> Run:
    async def launch(harness: Shell, script: str, *, timeout: float = 20, step: str = "") -> AgentEnd:
        assert box.handle is not None
        spec = AttemptSpec(
            rollout_id="r",
            attempt=1,
            instruction="go",
            base_url="http://127.0.0.1:1/v1",
            api_key=KEY,
            model="policy",
            workdir=box.handle.workdir,
            output_dir=str(tmp_path / "out"),
            settings={"script": script},
            sandbox=box.handle,
            step=step,
        )
        agent = await ProcessLauncher(harness).setup(spec, box)
        return await agent.run(timeout)

    return launch


ROOT = '"${WHIPPLETREE_ROOT:-}"'


async def test_a_text_reaches_its_standard_input_and_none_is_an_empty_one(run: Run) -> None:
    text = "line one\n$HOME `x` \u201cquoted\u201d\n"
    assert (await run(Shell(stdin=text), "cat")).result.message == text
    assert (await run(Shell(), "cat; echo end")).result.message == "end\n"


async def test_records_are_read_kept_and_told(run: Run, tmp_path: Path) -> None:
    folder = f"{ROOT}{HOME}/.tool"
    script = f"mkdir -p {folder}/sessions/a/b; cd {folder}; echo {KEY} > sessions/a/b/s.jsonl; echo 2 > sessions/t.jsonl; "
    script += "echo no > sessions/x.txt; ln -s /etc/passwd sessions/link.jsonl; echo T > trajectory"
    harness = Shell(trajectory=f"{HOME}/.tool/trajectory", records=(f"{HOME}/.tool/sessions/**/*.jsonl", f"{HOME}/.none/*"))
    end = await run(harness, script)
    names = [f"{HOME}/.tool/sessions/a/b/s.jsonl", f"{HOME}/.tool/sessions/t.jsonl", f"{HOME}/.tool/trajectory"]
    assert end.result.exit_status == "exit 0" and list(harness.handed) == names
    out = tmp_path / "out"
    assert (out / "trajectory.json").read_text() == "T\n"
    assert (out / f"records{names[0]}").read_text() == f"{HIDDEN}\n"
    assert json.loads((out / records.ACCOUNT).read_text()) == {"told": names, "key": HIDDEN}
    assert KEY not in "".join(path.read_text() for path in out.rglob("*") if path.is_file())


async def test_an_account_that_cannot_be_read_changes_no_end(run: Run, tmp_path: Path) -> None:
    end = await run(Shell(), "printf unreadable")
    assert end.result.exit_status == "exit 0" and not (tmp_path / "out" / records.ACCOUNT).exists()


async def test_records_of_a_run_that_was_stopped_are_told_too(run: Run, tmp_path: Path) -> None:
    script = f"mkdir -p {ROOT}{HOME}/.tool; echo 1 > {ROOT}{HOME}/.tool/s.jsonl; sleep 1000"
    end = await run(Shell(records=(f"{HOME}/.tool/*.jsonl",)), script, timeout=5)
    assert end.timed_out and (tmp_path / "out" / records.ACCOUNT).exists()


async def test_a_later_step_finds_no_record_of_an_earlier_one(run: Run) -> None:
    harness = Shell(records=(f"{HOME}/.tool/*",), files=((f"{HOME}/.tool.toml", "a = 1"),))
    add = f"mkdir -p {ROOT}{HOME}/.tool; echo 1 > {ROOT}{HOME}/.tool"
    await run(harness, f"{add}/first", step="one")
    await run(harness, f"{add}/second", step="two")
    assert list(harness.handed) == [f"{HOME}/.tool/second"]


async def test_of_much_output_the_two_ends_are_kept(run: Run) -> None:
    end = await run(Shell(), "echo begins; head -c 3000000 /dev/zero | tr '\\0' .; echo; echo ends")
    said = end.result.message
    assert said.startswith("begins\n...") and said.endswith("...\nends\n") and CUT in said
    assert len(said) == OUTPUT_LIMIT + len(CUT)


async def test_no_more_than_the_limit_is_read(box: Sandbox) -> None:
    await box.exec(
        ["/bin/sh", "-c", f"cd {ROOT}/tmp; mkdir d; head -c 60 /dev/zero > d/a; head -c 60 /dev/zero > b"], timeout=10
    )
    assert list(await records.fetch(box, ["/tmp/d/*", "/tmp/b"], limit=100)) == ["/tmp/d/a"]
    assert list(await records.fetch(box, ["/tmp/d/*", "/tmp/b"], limit=120)) == ["/tmp/b", "/tmp/d/a"]


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("/home/agent/.pi/s/*/*.jsonl", ("/home/agent/.pi/s", "*/*.jsonl")),
        ("/logs/agent/t.json", ("/logs/agent/t.json", "")),
        ("/home/a[12]/x", None),
        ("/*/x", None),
    ],
)
def test_a_pattern_begins_with_a_folder(pattern: str, parts: tuple[str, str] | None) -> None:
    if parts is None:
        with pytest.raises(ValueError, match="a folder that holds little else"):
            records.root_of(pattern)
    else:
        assert records.root_of(pattern) == parts


def test_names_that_lead_out_of_the_folder_are_not_kept(tmp_path: Path) -> None:
    names = {"../outside": b"1", "/a/../../b": b"2", "/c/d": b"3", "/c/d/e": b"4", f"/{'x' * 300}": b"5"}
    records.keep(tmp_path / "kept", names, KEY, HIDDEN)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()] == ["kept/c/d"]


# --- launch by source ----------------------------------------------------------------------------------------------------


def rollout(source: str) -> RolloutSpec:
    return RolloutSpec(rollout_id=source, group_id="g", source=source, task_id="t", task_path="/t", harness="http")


def test_sources_may_differ_in_how_they_launch_one_harness(tmp_path: Path) -> None:
    adapter = "harness_parts:HttpHarness"
    bindings = [
        HarnessBinding(harness="http", source="a", adapter=adapter),
        HarnessBinding(harness="http", source="b", adapter=adapter, launch="process"),
        HarnessBinding(harness="http", source="c", adapter=adapter, launch="pool"),
    ]
    for default, kinds in (
        ("pool", (PoolLauncher, ProcessLauncher, PoolLauncher)),
        ("process", (ProcessLauncher,) * 2 + (PoolLauncher,)),
    ):
        launchers = Launchers(bindings, ControlConfig(launch=default), tmp_path)
        found = [launchers.find(rollout(source))[0] for source in "abc"]
        assert tuple(map(type, found)) == kinds and len(launchers.pools) == 1
        if default == "pool":
            assert found[0] is found[2]


def test_a_harness_that_no_pool_can_hold_is_refused_with_what_to_set(tmp_path: Path) -> None:
    bindings = [HarnessBinding(harness="shell", adapter=f"{__name__}:Shell", launch="pool")]
    with pytest.raises(ConfigurationError, match=r"cannot run inside a pool host \(set launch = \"process\""):
        Launchers(bindings, ControlConfig(launch="process"), tmp_path)


def test_harnesses_are_looked_for_where_the_run_says(tmp_path: Path) -> None:
    config = ControlConfig(launch="process", harness_directory=str(tmp_path / "installed"))
    launchers = Launchers([HarnessBinding(harness="pi")], config, tmp_path)
    launcher, _ = launchers.find(
        RolloutSpec(rollout_id="r", group_id="g", source="s", task_id="t", task_path="/t", harness="pi")
    )
    assert launcher.read_only == ((str(tmp_path / "installed" / "pi-0.73.1"), "/opt/harnesses/pi"),)
