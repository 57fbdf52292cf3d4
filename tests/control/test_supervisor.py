"""Supervised children: real processes that get ready, crash, are started again and never outlive the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from whippletree.control import lifeline
from whippletree.control.guard import Guard
from whippletree.control.policy import RestartPolicy
from whippletree.control.supervisor import ChildSpec, ChildStatus, Supervisor
from whippletree.errors import ProcessError

QUICK = RestartPolicy(limit=3, first_delay=0.01, max_delay=0.02)
SERVE = "echo started; sleep 1000 & echo '{\"port\": 8123}' > $READY.tmp; mv $READY.tmp $READY; wait"


def wait_until(condition, seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as made:
        yield made


def child(directory: Path, script: str, name: str = "server", **settings) -> ChildSpec:
    ready = directory / f"{name}.json"
    return ChildSpec(
        name=name,
        argv=("sh", "-c", script),
        environment={"READY": str(ready), "DIRECTORY": str(directory)},
        log_path=str(directory / f"{name}.log"),
        ready_file=str(ready),
        **{"restart": QUICK, "ready_seconds": 30.0, **settings},
    )


def only(supervisor: Supervisor) -> ChildStatus:
    (status,) = supervisor.status()
    return status


def test_start_returns_the_ready_file_and_stop_leaves_nothing(supervisor: Supervisor, tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text("left by an earlier run")
    assert supervisor.start(child(tmp_path, SERVE)) == b'{"port": 8123}\n'
    pid = only(supervisor).pid
    wait_until(lambda: len(lifeline.session_members(pid)) == 2)  # what wrote the file has ended too
    supervisor.stop("server")
    assert lifeline.session_members(pid) == []
    assert supervisor.status() == []
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # not even a zombie


def test_a_child_that_dies_before_it_is_ready_is_explained(supervisor: Supervisor, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("an old line\n")
    with pytest.raises(ProcessError) as caught:
        supervisor.start(child(tmp_path, "echo no model at /x >&2; exit 4"))
    text = str(caught.value)
    assert "server.json" in text and "status 4" in text and "no model at /x" in text
    assert "an old line" not in text
    assert supervisor.status() == []


def test_a_child_that_is_not_ready_in_time_is_ended_and_explained(supervisor: Supervisor, tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match=r"did not within 4 s[\s\S]*loading"):
        supervisor.start(child(tmp_path, "echo loading; echo $$ > $DIRECTORY/pid; sleep 1000", ready_seconds=4.0))
    assert supervisor.status() == []


def test_a_child_without_a_ready_file_is_ready_when_it_runs(supervisor: Supervisor, tmp_path: Path) -> None:
    spec = ChildSpec(name="plain", argv=("sleep", "1000"), log_path=str(tmp_path / "plain.log"))
    assert supervisor.start(spec) == b""
    assert only(supervisor).state == "ready"


def test_a_killed_child_comes_back_and_its_old_session_is_empty(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(child(tmp_path, SERVE))
    old = only(supervisor).pid
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: only(supervisor).restarts == 1 and only(supervisor).state == "ready")
    assert only(supervisor).pid != old
    assert lifeline.session_members(old) == []
    supervisor.check()


def test_a_child_that_keeps_dying_is_given_up_and_reported(tmp_path: Path) -> None:
    reported: list[ChildStatus] = []
    with Supervisor(on_failure=reported.append) as supervisor:
        dies = "while ! test -e $DIRECTORY/go; do sleep 0.01; done; exit 9"
        supervisor.start(child(tmp_path, f"echo out of memory; echo '{{}}' > $READY; {dies}"))
        (tmp_path / "go").touch()
        wait_until(lambda: bool(reported))
        assert reported[0].name == "server" and reported[0].restarts == QUICK.limit
        with pytest.raises(ProcessError, match="out of memory"):
            supervisor.check()
        supervisor.stop("server")
        supervisor.check()


def test_a_deaf_child_is_killed_at_its_limit(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(child(tmp_path, "trap '' TERM; " + SERVE + "; wait; wait", stop_seconds=0.3))
    pid = only(supervisor).pid
    supervisor.stop("server")
    assert lifeline.session_members(pid) == []


def test_children_have_sessions_of_their_own_and_stop_in_reverse_order(tmp_path: Path) -> None:
    script = f"trap 'echo $NAME >> $DIRECTORY/order; exit 0' TERM; {SERVE}"
    with Supervisor() as supervisor:
        for name in ("first", "second", "third"):
            supervisor.start(child(tmp_path, script.replace("$NAME", name), name=name))
        sessions = {os.getsid(status.pid) for status in supervisor.status()}
        assert len(sessions) == 3 and os.getsid(0) not in sessions
    assert (tmp_path / "order").read_text().split() == ["third", "second", "first"]


def test_restart_takes_a_new_spec(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(child(tmp_path, SERVE))
    with pytest.raises(ProcessError, match="running already"):
        supervisor.start(child(tmp_path, SERVE))
    assert supervisor.restart(child(tmp_path, SERVE.replace("8123", "8124"))) == b'{"port": 8124}\n'


SUPERVISOR = """
import sys
from pathlib import Path
from whippletree.control.supervisor import ChildSpec, Supervisor
supervisor = Supervisor()
for name in ("a", "b"):
    supervisor.start(ChildSpec(name=name, argv=("sh", "-c", sys.argv[1]), log_path=f"{sys.argv[2]}/{name}.log",
                               environment={"READY": f"{sys.argv[2]}/{name}.json"}, ready_file=f"{sys.argv[2]}/{name}.json"))
print(*[status.pid for status in supervisor.status()], flush=True)
sys.stdin.read()
"""


def test_kill_9_of_the_supervisor_leaves_no_process(tmp_path: Path) -> None:
    script = "set -m; sleep 1000 & " + SERVE  # a grandchild in a process group of its own
    argv = [sys.executable, "-c", SUPERVISOR, script, str(tmp_path)]
    owner = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    sessions = [int(word) for word in owner.stdout.readline().split()]
    wait_until(lambda: all(len(lifeline.session_members(session)) == 3 for session in sessions))
    owner.kill()
    owner.communicate()
    wait_until(lambda: not any(lifeline.session_members(session) for session in sessions))


def test_a_killed_guard_is_replaced_by_one_that_knows_all() -> None:
    first, second = (subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(2))
    guard = Guard()
    guard.watch(first.pid)
    assert guard.pid
    os.kill(guard.pid, signal.SIGKILL)
    wait_until(lambda: not guard.pid)
    guard.watch(second.pid)
    guard.close()
    assert first.wait(20) == second.wait(20) == -signal.SIGKILL


def test_a_command_that_cannot_be_started_is_explained(supervisor: Supervisor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spec = ChildSpec(name="plain", argv=("sleep", "1"), log_path=str(tmp_path / "file" / "plain.log"))
    with pytest.raises(ProcessError, match="cannot be started"):
        supervisor.start(spec)
