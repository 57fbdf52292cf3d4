"""What runs in a pod, run here by the shells that are here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sandbox_suite import processes_with

from whippletree.protocols import Limits
from whippletree.sandboxes.pods import scripts
from whippletree.sandboxes.pods import usage as pod_usage

LIMITS = Limits(memory_mb=0, open_files=0, file_mb=0)
APPLETS = [tool for tool in (*scripts.TOOLS, "seq", "setsid", "sort", "ls", "chmod", "mkfifo", "ln", "dd") if tool != "sh"]


@dataclass
class Shell:
    """A shell with its tools; `sh` on its PATH is that shell."""

    name: str
    path: str
    place: Path

    def run(self, script: bytes | str, *arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        return self.start(script, *arguments).finish(stdin)

    def start(self, script: bytes | str, *arguments: str) -> Started:
        text = script if isinstance(script, bytes) else script.encode()
        argv = [f"{self.place}/bin/sh", "-c", os.fsdecode(text.replace(scripts.PLACE.encode(), bytes(self.place / "state")))]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*argv, "whippletree", *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env={"PATH": self.path}, cwd=self.place
        )
        return Started(process)

    def command(self, token: str, *argv: bytes | str, environment: dict[str, str] | None = None, keep: int = 100_000) -> bytes:
        words = [os.fsencode(word) for word in argv]
        return scripts.command(
            token,
            words,
            environment=environment or {},
            cwd=str(self.place),
            user="",
            own=(0, "root"),
            limits=LIMITS,
            keep=keep,
        )

    def state(self, token: str) -> str:
        return str(self.place / "state" / token)


@dataclass
class Started:
    process: subprocess.Popen[bytes]

    def finish(self, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        out, err = self.process.communicate(stdin, timeout=60)
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)


@pytest.fixture(params=["dash", "bash", "busybox"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    program = shutil.which(request.param)
    if program is None:
        pytest.skip(f"no {request.param} here")
    (tmp_path / "bin").mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "bin" / "sh").symlink_to(program)
    path = f"{tmp_path}/bin:{os.defpath}"
    if request.param == "busybox":
        for tool in APPLETS:
            (tmp_path / "bin" / tool).symlink_to(program)
        path = f"{tmp_path}/bin"
    yield Shell(request.param, path, tmp_path)


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


def token() -> str:
    return uuid.uuid4().hex


def test_words_and_variables_arrive_as_they_are(shell: Shell) -> None:
    nasty = [
        b"a b",
        b"",
        b"'",
        b'"$HOME`id`\\',
        b"-n",
        b"\xff\xfe",
        b"line\nline",
        b"*",
        b"$(touch hacked)",
        b"%s",
        "é".encode(),
    ]
    done = shell.run(shell.command(token(), "env", "-i", "printf", "[%s]", *nasty))
    assert done.stdout == b"".join(b"[" + word + b"]" for word in nasty)
    environment = {"A": "it's; touch hacked", "WITH-DASH": "1", "B": "a\nb"}
    seen = shell.run(shell.command(token(), "env", environment=environment)).stdout.decode()
    assert {"A=it's; touch hacked", "WITH-DASH=1", "B=a"} <= set(seen.split("\n"))
    assert not (shell.place / "hacked").exists()


def test_a_command_has_its_code_and_its_errors_go_with_its_output(shell: Shell) -> None:
    done = shell.run(shell.command(token(), "sh", "-c", "echo out; echo err >&2; exit 3"))
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\nerr\n", b"")
    assert shell.run(shell.command(token(), "sh", "-c", "kill -TERM $$")).returncode == 128 + 15
    missing = shell.run(shell.command(token(), "no-such-program"))
    assert (missing.returncode, missing.stdout) == (127, b"no-such-program: command not found\n")


def test_a_program_whose_name_looks_like_a_variable_runs(shell: Shell) -> None:
    program = shell.place / "a=b"
    program.write_text("#!/bin/sh\necho ran $1\n")
    program.chmod(0o755)
    assert shell.run(shell.command(token(), str(program), "x")).stdout == b"ran x\n"


def test_a_command_has_no_input_and_waits_for_its_output(shell: Shell) -> None:
    late = "(while ! test -e said; do sleep 0.05; done; sleep 0.3; echo late)"
    done = shell.run(shell.command(token(), "sh", "-c", f"cat; {late} & echo first; : > said"), stdin=b"not for it")
    assert done.stdout == b"first\nlate\n"


def test_an_outcome_can_be_had_again(shell: Shell) -> None:
    name = token()
    done = shell.run(shell.command(name, "sh", "-c", "echo 0123456789; exit 5"))
    assert done.returncode == 5
    again = shell.run(scripts.FOLLOW, shell.state(name), "4")
    assert (again.returncode, again.stdout, again.stderr) == (5, b"456789\n", b"")


def test_a_command_outlives_what_started_it(shell: Shell) -> None:
    """The connection's end is read no more, and then its process is killed."""
    name = token()
    started = shell.start(
        shell.command(name, "sh", "-c", "echo one; while ! test -e go; do sleep 0.05; done; seq 40000; exit 6")
    )
    assert started.process.stdout is not None
    assert started.process.stdout.read(4) == b"one\n"
    following = shell.start(scripts.FOLLOW, shell.state(name), "4")
    started.process.kill()
    for stream in (started.process.stdin, started.process.stdout, started.process.stderr):
        assert stream is not None
        stream.close()
    started.process.wait()
    (shell.place / "go").touch()
    found = following.finish()
    assert found.returncode == 6
    assert found.stdout.split() == [str(number).encode() for number in range(1, 40001)][: len(found.stdout.split())]
    assert len(found.stdout) >= 100_000 - 4


def test_what_is_kept_of_the_output_is_bounded(shell: Shell) -> None:
    name = token()
    done = shell.run(shell.command(name, "sh", "-c", "dd if=/dev/zero bs=1000 count=300 2>/dev/null", keep=5000))
    assert len(done.stdout) == 300_000 and done.returncode == 0
    assert 5000 < (shell.place / "state" / name / "out").stat().st_size <= 2 * 5000 + 2048


def test_a_command_that_was_given_up_before_it_began_never_begins(shell: Shell) -> None:
    name = token()
    never = shell.run(scripts.FOLLOW, shell.state(name), "0")
    assert never.stderr.strip().decode() == scripts.NEVER
    late = shell.run(shell.command(name, "sh", "-c", "touch began"))
    assert late.returncode == scripts.FAILED and b"given up" in late.stderr
    assert not (shell.place / "began").exists()
    other = token()
    assert shell.run(scripts.KILL, shell.state(other), f"{scripts.MARK}={other}").returncode == 0
    assert shell.run(shell.command(other, "sh", "-c", "touch began")).returncode == scripts.FAILED


def test_a_command_whose_pipeline_was_killed_is_said_to_be(shell: Shell) -> None:
    name = token()
    mark = f"75{os.getpid()}"
    started = shell.start(shell.command(name, "sleep", mark))
    until(lambda: bool(processes_with(f"sleep\0{mark}")) and (shell.place / "state" / name / "pump").exists())
    until(lambda: bool((shell.place / "state" / name / "pump").read_text()))
    group = [started.process.pid, int((shell.place / "state" / name / "pump").read_text())]
    for pid in [*group, *processes_with(f"sleep\0{mark}")]:
        os.kill(pid, signal.SIGKILL)
    started.finish()
    assert shell.run(scripts.FOLLOW, shell.state(name), "0").returncode in (scripts.KILLED,)


def test_a_kill_takes_all_that_a_command_started_and_nothing_else(shell: Shell) -> None:
    mark = f"74{os.getpid()}"
    other = shell.start(shell.command(token(), "sleep", f"{mark}9"))
    name = token()
    command = f"setsid /bin/sleep {mark}1 & (/bin/sleep {mark}2 &) ; (exec env -i /bin/sleep {mark}3) & /bin/sleep {mark}4"
    started = shell.start(shell.command(name, "sh", "-c", command, environment={"PATH": f"{shell.path}:{os.defpath}"}))
    until(lambda: len(processes_with(f"sleep\0{mark}")) == 5)
    killed = shell.run(scripts.KILL, shell.state(name), f"{scripts.MARK}={name}")
    assert killed.returncode == 0
    assert started.finish().returncode == scripts.KILLED
    (left,) = processes_with(f"sleep\0{mark}")
    os.kill(left, signal.SIGKILL)
    assert other.finish().returncode == scripts.KILLED


def test_state_that_is_not_wanted_any_more_is_forgotten(shell: Shell) -> None:
    first, second = token(), token()
    shell.run(shell.command(first, "true"))
    assert (shell.place / "state" / first).is_dir()
    words = {"environment": {}, "cwd": "/", "user": "", "own": (0, "root"), "limits": LIMITS, "keep": 10}
    assert shell.run(scripts.command(second, [b"true"], done=[first], **words)).returncode == 0  # type: ignore[arg-type]
    assert [path.name for path in (shell.place / "state").iterdir()] == [second]


def test_no_link_is_followed_on_the_way_to_a_file(shell: Shell) -> None:
    place = shell.place
    (place / "dir").mkdir()
    (place / "dir" / "file").write_text("content")
    (place / "link").symlink_to("dir")
    os.mkfifo(place / "pipe")
    assert shell.run(scripts.READ, f"{place}/dir/file", "3").stdout == b"con"
    assert shell.run(scripts.READ, f"{place}/dir/none", "3").stderr.strip().decode() == scripts.NONE
    for path in ("link/file", "link", "pipe", "dir"):
        done = shell.run(scripts.READ, f"{place}/{path}", "3")
        assert done.returncode == scripts.FAILED and done.stderr.strip().decode() not in ("", scripts.NONE)
    for target, directories, files in (
        (f"{place}/link/x", [f"{place}/link"], [f"{place}/link/x"]),
        (f"{place}/dir/file", [f"{place}/dir"], [f"{place}/dir/file"]),
        (f"{place}/dir/file/x", [f"{place}/dir/file"], [f"{place}/dir/file/x"]),
    ):
        assert shell.run(scripts.prepare(target, directories, files)).returncode == scripts.FAILED
    made = shell.run(scripts.prepare(f"{place}/n e w", [f"{place}/n e w/it's"], [f"{place}/n e w/it's/x"]))
    assert made.returncode == 0 and (place / "n e w" / "it's").is_dir()


def test_a_probe_names_what_an_image_lacks(shell: Shell) -> None:
    good = shell.run(scripts.probe([str(shell.place / "app")]))
    assert good.returncode == 0 and good.stdout.split(b"\n")[0] == str(os.geteuid()).encode()
    assert (shell.place / "app").is_dir()
    (shell.place / "only").mkdir()
    (shell.place / "only" / "sh").symlink_to(shutil.which(shell.name) or "")
    bare = Shell(shell.name, str(shell.place / "only"), shell.place)
    if shell.name != "busybox":  # its shell may find its own tools without a path
        lacking = bare.run(scripts.probe([str(shell.place / "app")]))
        assert lacking.returncode == scripts.FAILED
        assert lacking.stderr.startswith(b"its image lacks: tar cat head")


def test_only_a_pod_of_ours_has_all_its_processes_killed() -> None:
    """Run here it would end everything; the guard is what is tested."""
    assert scripts.INIT_MARK not in Path("/proc/1/cmdline").read_text()
    guarded = scripts.KILL_ALL.replace("kill -9 -1", "echo reached")
    done = subprocess.run(("/bin/sh", "-c", guarded), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (scripts.FAILED, "")
    assert scripts.SAVE.index("grep -q") < scripts.SAVE.index("kill -STOP -1")


def test_usage_is_the_cgroups_or_that_of_processes() -> None:
    stat = "stat 7 (a b) c) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 20 30 20 0 1 0 1 1 1\n"
    version2 = pod_usage.parse(f"cpu_usec 2500000\nmemory 4096\nprocesses 3\n{stat}disk_kb 8\ndisk_kb 4\n".encode())
    assert (version2.cpu_seconds, version2.memory_peak_bytes, version2.processes, version2.disk_bytes) == (2.5, 4096, 3, 12288)
    assert pod_usage.parse(b"cpu_nsec 1500000000\n").cpu_seconds == 1.5
    bare = pod_usage.parse(f"memory max\n{stat}".encode())
    assert (bare.cpu_seconds, bare.memory_peak_bytes) == (2.5, None)
