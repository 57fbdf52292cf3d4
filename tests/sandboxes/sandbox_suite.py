"""What every backend must do. `make` starts a sandbox that is stopped at the end of the test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from whippletree import sandboxes
from whippletree.errors import SandboxError
from whippletree.protocols import ExecResult, Limits, Sandbox, SandboxSpec
from whippletree.sandboxes import cgroups
from whippletree.sandboxes.keeper import Kept

Make = Callable[..., Awaitable[sandboxes.Box]]


async def sh(box: sandboxes.Box, command: str, timeout: float = 20.0, **more: Any) -> ExecResult:
    return await box.exec(("/bin/sh", "-c", command), timeout=timeout, **more)


async def sees_only(box: sandboxes.Box, *more: str) -> None:
    """The root of a box holds its own folders, `more`, and this machine's programs; nothing secret is in its /etc."""
    own = ("app", "dev", "etc", "home", "logs", "proc", "run", "tmp", "usr", "var")
    programs = [name for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32") if Path("/", name).exists()]
    assert (await sh(box, "ls /")).output.split() == sorted([*own, *more, *programs])
    for name in ("shadow", "machine-id", "ssh"):
        assert (await sh(box, f"ls /etc/{name}")).exit_code != 0


def processes_with(mark: str) -> list[int]:
    """Host pids whose command line holds `mark`."""
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                    found.append(int(entry))
    return found


def running(pid: int) -> bool:
    """Whether a process has not ended; one that its parent has not waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def left_behind(root: Path) -> dict[str, list[str]]:
    """Everything that sandboxes below `root` would leave: folders, cgroups, mounts, processes."""
    groups = [path for path, _, _ in os.walk("/sys/fs/cgroup") if Path(path).name.startswith(group_prefix(root))]
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(root) in line]
    return {
        "folders": [path.name for path in root.iterdir()] if root.exists() else [],
        "cgroups": groups,
        "mounts": mounts,
        "processes": [str(pid) for pid in processes_with(str(root))],
    }


def group_prefix(root: Path) -> str:
    return cgroups.name_of(str(root), "")


NOTHING: dict[str, list[str]] = {"folders": [], "cgroups": [], "mounts": [], "processes": []}


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what another process does; fails after a long time only."""
    limit = time.monotonic() + 60
    while not condition():
        if time.monotonic() > limit:
            pytest.fail(f"never came: {what}")
        await asyncio.sleep(0.02)


async def orphans_are_reaped(box: sandboxes.Box) -> None:
    """Processes that nobody waits for end in it and leave no zombie."""
    for _ in range(5):
        await sh(box, "setsid -f sleep 0.05 >/dev/null 2>&1; setsid -f sleep 0.05 >/dev/null 2>&1")
    for _ in range(1000):
        seen = (await sh(box, "ps -ef")).output
        if "sleep" not in seen and "defunct" not in seen:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"they are there still: {seen}")


FILLER = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(600)
    except OSError:
        time.sleep(0.001)
"""


class Suite:
    """Subclasses set `kind` (and may skip)."""

    kind: str

    async def test_it_is_a_sandbox_with_a_sentence_about_its_isolation(self, make: Make) -> None:
        box = await make(self.kind)
        assert isinstance(box, Sandbox)
        assert box.isolation.startswith(self.kind)
        assert box.handle is not None and box.handle.backend == self.kind

    async def test_address_space_is_limited_only_where_no_cgroup_holds_the_memory(self, make: Make) -> None:
        """Node and the JVM reserve far more than they use."""
        box = await make(self.kind, limits=Limits(memory_mb=700, processes=200))
        assert box.handle is not None
        held = any("memory" in directory for directory in box.handle.cgroups)
        said = (await sh(box, "ulimit -v")).output.strip()
        assert said == ("unlimited" if held else str(700 * 1024))

    async def test_a_command_runs_in_the_work_directory_with_merged_output_and_its_code(self, make: Make) -> None:
        box = await make(self.kind)
        done = await sh(box, "pwd; echo out; echo err >&2; exit 3")
        assert box.handle is not None
        assert (done.exit_code, done.output) == (3, f"{box.handle.workdir}\nout\nerr\n")
        assert not done.timed_out and not done.truncated and done.seconds > 0

    async def test_a_command_that_cannot_be_passed_on_is_refused(self, make: Make) -> None:
        box = await make(self.kind)
        for argv in ((), ("echo", "a\0b"), ("echo", "\ud800")):
            with pytest.raises(SandboxError, match="cannot be passed on"):
                await box.exec(argv, timeout=10)

    async def test_a_signal_is_a_negative_code(self, make: Make) -> None:
        assert (await sh(await make(self.kind), "kill -TERM $$")).exit_code == -15

    async def test_output_that_is_not_utf8_is_replaced(self, make: Make) -> None:
        assert (await sh(await make(self.kind), r"printf 'a\377b'")).output == "a�b"

    async def test_a_missing_program_and_a_missing_directory_say_so(self, make: Make) -> None:
        box = await make(self.kind)
        missing = await box.exec(("no-such-program",), timeout=10)
        assert (missing.exit_code, missing.output) == (127, "no-such-program: command not found\n")
        nowhere = await sh(box, "true", cwd="/no/such")
        assert nowhere.exit_code == 126 and "No such file" in nowhere.output

    async def test_the_environment_is_the_sandboxs_the_specs_and_the_commands(self, make: Make, monkeypatch: Any) -> None:
        monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
        box = await make(self.kind, environment={"FROM_SPEC": "1", "BOTH": "spec"})
        done = await sh(box, "env", environment={"FROM_EXEC": "2", "BOTH": "exec"})
        lines = done.output.splitlines()
        assert {"FROM_SPEC=1", "FROM_EXEC=2", "BOTH=exec", "USER=agent"} <= set(lines)
        assert "SECRET_OF_THE_HOST" not in done.output

    async def test_output_beyond_the_limit_is_drained_and_dropped(self, make: Make) -> None:
        done = await sh(await make(self.kind), "head -c 3000000 /dev/zero | tr '\\0' x; echo end; exit 4", output_limit=1000)
        assert (done.exit_code, len(done.output), done.truncated) == (4, 1000, True)

    async def test_a_timeout_kills_all_that_the_command_started_and_keeps_the_output(self, make: Make) -> None:
        box = await make(self.kind)
        mark = f"77{os.getpid()}"
        command = f"echo hi; setsid sleep {mark}1 & (sleep {mark}2 &) ; setsid -f sleep {mark}3; sleep {mark}4"
        for limit in (0.5, 5.0, 50.0):  # the first is long enough, but on a machine that stands still
            done = await sh(box, command, timeout=limit)
            assert (done.exit_code, done.timed_out) == (124, True)
            assert processes_with(f"sleep\0{mark}") == []
            if done.output:
                break
        assert done.output == "hi\n"

    async def test_a_timeout_leaves_other_commands_alone(self, make: Make) -> None:
        box = await make(self.kind)
        pieces: list[bytes] = []
        command = "echo begun; while ! test -e go; do sleep 0.02; done; echo done"
        slow = asyncio.create_task(sh(box, command, timeout=100, on_output=pieces.append))
        await until(lambda: bool(pieces), "the other command")
        assert (await sh(box, "sleep 60", timeout=0.3)).timed_out
        await sh(box, "touch go")
        assert (await slow).output == "begun\ndone\n"

    async def test_background_processes_outlive_their_command_until_kill_all(self, make: Make) -> None:
        box = await make(self.kind)
        mark = f"78{os.getpid()}"
        assert (await sh(box, f"setsid sleep {mark} >/dev/null 2>&1 &")).exit_code == 0
        await until(lambda: len(processes_with(f"sleep\0{mark}")) == 1, "what it left, which may begin after its end")
        await sh(box, "echo kept > note")
        await box.kill_all()
        assert processes_with(f"sleep\0{mark}") == []
        assert (await sh(box, "cat note")).output == "kept\n"

    async def test_kill_all_ends_running_commands_too(self, make: Make) -> None:
        box = await make(self.kind)
        pieces: list[bytes] = []
        running = asyncio.create_task(sh(box, "echo started; sleep 600", timeout=100, on_output=pieces.append))
        await until(lambda: bool(pieces), "the command")
        await box.kill_all()
        ended = await running
        assert ended.exit_code == -9 and not ended.timed_out

    async def test_cancelling_an_exec_ends_its_command(self, make: Make) -> None:
        box = await make(self.kind)
        mark = f"79{os.getpid()}"
        running = asyncio.create_task(sh(box, f"sleep {mark}"))
        await until(lambda: len(processes_with(f"sleep\0{mark}")) == 1, "the command")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: not processes_with(f"sleep\0{mark}"), "the command's end")

    async def test_attach_runs_commands_from_threads(self, make: Make) -> None:
        box = await make(self.kind)
        assert box.handle is not None
        other = sandboxes.attach(box.handle)

        def work(number: int) -> str:
            return other.exec(("/bin/sh", "-c", f"echo {number} | tee f{number}"), timeout=20).output

        outputs = await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(12)))
        assert outputs == [f"{number}\n" for number in range(12)]
        late = await asyncio.to_thread(lambda: other.exec(("sleep", "60"), timeout=0.2))
        assert (late.exit_code, late.timed_out) == (124, True)
        assert sorted((await sh(box, "ls")).output.split()) == sorted(f"f{number}" for number in range(12))

    async def test_files_of_the_spec_are_copied_with_their_modes(self, make: Make, tmp_path: Path) -> None:
        data = tmp_path / "data"
        (data / "deep").mkdir(parents=True)
        (data / "deep" / "a").write_text("A")
        (data / "link").symlink_to("deep/a")
        tool = tmp_path / "tool"
        tool.write_text("#!/bin/sh\necho tool $0\n")
        tool.chmod(0o755)
        files = ((str(data), "/app"), (str(tool), "/usr/local/bin/wt-tool"))
        box = await make(self.kind, files=files)
        assert (await sh(box, "cat deep/a link; wt-tool | cut -c1-4; echo b > deep/b")).output == "AAtool"[:2] + "tool\n"
        assert (tmp_path / "data" / "deep" / "b").exists() is False

    async def test_put_and_read(self, make: Make, tmp_path: Path) -> None:
        box = await make(self.kind)
        (tmp_path / "t").mkdir()
        (tmp_path / "t" / "run.sh").write_text("echo ran\n")
        await box.put(tmp_path / "t", "/tests")
        assert await box.read("/tests/run.sh") == b"echo ran\n"
        assert await box.read("/tests/run.sh", limit=4) == b"echo"
        assert (await box.exec(("/bin/sh", "/tests/run.sh"), timeout=10)).output == "ran\n"
        assert await box.read("/logs/none") is None
        assert await box.read("/none/none") is None
        with pytest.raises(SandboxError, match="File exists"):
            await box.put(tmp_path / "t" / "run.sh", "/tests/run.sh")
        with pytest.raises(SandboxError, match="No such file"):
            await box.put(tmp_path / "missing", "/tests/x")

    async def test_a_command_may_start_at_the_root_of_the_sandbox(self, make: Make, tmp_path: Path) -> None:
        box = await make(self.kind)
        (tmp_path / "x").write_text("x")
        await box.put(tmp_path / "x", "/tests/x")
        assert (await sh(box, "cat tests/x; echo 1 > logs/reward", cwd="/")).output == "x"
        assert await box.read("/logs/reward") == b"1\n"

    async def test_no_symbolic_link_is_followed(self, make: Make, tmp_path: Path) -> None:
        box = await make(self.kind)
        await sh(box, "ln -s /etc/passwd l; ln -s /etc d; mkfifo pipe; mkdir dir")
        for path in ("/app/l", "/app/d/passwd", "/app/pipe", "/app/dir"):
            with pytest.raises(SandboxError):
                await box.read(path)
        (tmp_path / "x").write_text("x")
        for target in ("/app/d/x", "/app/l", "/app/../../x", "relative"):
            with pytest.raises(SandboxError):
                await box.put(tmp_path / "x", target)

    async def test_limits_hold(self, make: Make) -> None:
        box = await make(self.kind, limits=Limits(memory_mb=256, processes=32, open_files=64, file_mb=1))
        assert (await sh(box, "ulimit -n; ulimit -c; ulimit -f")).output.split() == ["64", "0", "2048"]
        big = await sh(box, "head -c 5000000 /dev/zero > big; wc -c < big")
        assert big.output.split()[-1] == "1048576"
        memory = await box.exec(("python3", "-c", "x = bytearray(600 << 20); print(len(x))"), timeout=30)
        assert memory.exit_code != 0 and "629145600" not in memory.output

    async def test_a_sandbox_full_of_processes_says_so_and_can_be_emptied(self, make: Make) -> None:
        box = await make(self.kind, limits=Limits(memory_mb=256, processes=24))
        assert box.handle is not None
        if not any("pids" in directory for directory in box.handle.cgroups):
            pytest.skip("no cgroup limits processes here")
        await box.exec(("sh", "-c", 'python3 -c "$1" >/dev/null 2>&1 &', "sh", FILLER), timeout=20)
        for _ in range(1000):
            try:
                await sh(box, "true")
            except SandboxError as error:
                assert "cannot enter the sandbox" in str(error)
                break
            await asyncio.sleep(0.02)
        else:
            pytest.fail("it is never full")
        await box.kill_all()
        assert (await sh(box, "echo on")).output == "on\n"

    async def test_stop_is_idempotent_and_leaves_nothing(self, make: Make, sandbox_root: Path) -> None:
        box = await make(self.kind)
        await sh(
            box,
            "mkdir no; touch no/f; chmod 0 no; setsid sleep 600 >/dev/null 2>&1 & setsid -f sleep 601 >/dev/null 2>&1",
        )
        await box.stop()
        await box.stop()
        assert left_behind(sandbox_root) == NOTHING
        with pytest.raises(SandboxError, match="start it first"):
            await sh(box, "true")
        assert box.handle is not None
        with pytest.raises(SandboxError, match="cannot be reached"):
            sandboxes.attach(box.handle).exec(("true",), timeout=1)

    async def test_thirty_in_a_row_leave_nothing(self, make: Make, sandbox_root: Path) -> None:
        for number in range(30):
            box = await make(self.kind, sandbox_id=f"row-{number % 3}")
            assert (await sh(box, "echo ok; setsid sleep 600 >/dev/null 2>&1 &")).output == "ok\n"
            await box.stop()
        assert left_behind(sandbox_root) == NOTHING

    async def test_ten_at_once_leave_nothing(self, make: Make, sandbox_root: Path) -> None:
        boxes = await asyncio.gather(*(make(self.kind, sandbox_id=f"many-{number}") for number in range(10)))
        outputs = await asyncio.gather(*(sh(box, "pwd > where; cat where") for box in boxes))
        assert [done.exit_code for done in outputs] == [0] * 10
        await asyncio.gather(*(box.stop() for box in boxes))
        assert left_behind(sandbox_root) == NOTHING

    async def test_a_sandbox_of_the_same_name_is_refused_while_it_lives(self, make: Make) -> None:
        await make(self.kind, sandbox_id="twin")
        with pytest.raises(SandboxError, match="File exists"):
            await make(self.kind, sandbox_id="twin")

    async def test_bad_specs_are_refused(self, make: Make) -> None:
        for spec in (
            {"sandbox_id": "../up"},
            {"sandbox_id": ""},
            {"sandbox_id": "x" * 65},
            {"workdir": "app"},
            {"workdir": "/app/../etc"},
            {"workdir": "/"},
            {"workdir": "/usr/x"},
            {"files": (("/nowhere/at/all", "/app"),)},
        ):
            with pytest.raises(SandboxError):
                await make(self.kind, **spec)

    async def test_the_death_of_the_keeper_ends_everything_and_clean_removes_the_rest(
        self, make: Make, sandbox_root: Path
    ) -> None:
        box = await make(self.kind, sandbox_id="orphan")
        mark = f"76{os.getpid()}"
        await sh(box, f"setsid -f sleep {mark} >/dev/null 2>&1")
        kept = msgspec.json.decode((sandbox_root / "orphan" / "state.json").read_bytes(), type=Kept)
        os.kill(kept.keeper, 9)
        with pytest.raises(SandboxError):
            await sh(box, "true")
        if self.kind != "process":
            await until(lambda: not processes_with(f"sleep\0{mark}"), "the end of its processes")
        cleaned = await asyncio.to_thread(sandboxes.clean, sandboxes.SandboxConfig(root=str(sandbox_root)), "orph")
        assert cleaned.removed == ("orphan",)
        assert processes_with(f"sleep\0{mark}") == []
        await box.stop()
        assert left_behind(sandbox_root) == NOTHING

    async def test_clean_leaves_the_living_alone(self, make: Make, sandbox_root: Path) -> None:
        box = await make(self.kind, sandbox_id="alive")
        cleaned = await asyncio.to_thread(sandboxes.clean, sandboxes.SandboxConfig(root=str(sandbox_root)), "")
        assert (cleaned.removed, cleaned.alive) == ((), ("alive",))
        assert (await sh(box, "echo on")).output == "on\n"


def spec_of(**fields: Any) -> SandboxSpec:
    return SandboxSpec(**({"sandbox_id": f"t-{time.monotonic_ns()}"} | fields))


def config_of(kind: str, root: Path, **fields: Any) -> sandboxes.SandboxConfig:
    """Settings for tests; criu is where WHIPPLETREE_CRIU says."""
    return sandboxes.SandboxConfig(kind=kind, root=str(root), criu=os.environ.get("WHIPPLETREE_CRIU", ""), **fields)


def kinds(support: sandboxes.SandboxSupport) -> list[str]:
    """The backends that work here, the one without needs first."""
    return ["process", *(kind for kind in ("bubblewrap", "runc", "podman") if not getattr(support, kind))]
