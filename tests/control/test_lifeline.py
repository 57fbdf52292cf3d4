"""Processes die with the one that started them, and the guard kills whole sessions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from whippletree.control import lifeline


def wait_until(condition, seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


PARENT = """
import os, subprocess, sys
from whippletree.control import lifeline
child = subprocess.Popen([*lifeline.exec_prefix(os.getpid()), "sleep", "1000"], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_an_exec_d_command_dies_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    wait_until(lambda: b"sleep" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0])
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    wait_until(lambda: not alive(child))


def test_a_process_whose_parent_is_gone_already_leaves_at_once() -> None:
    code = "from whippletree.control.lifeline import exit_with_parent; exit_with_parent(1 << 22); print('still here')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 137
    assert ended.stdout == ""


def test_a_command_that_does_not_exist_is_named() -> None:
    argv = [*lifeline.exec_prefix(os.getpid()), "/no/such/command"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 127
    assert "/no/such/command" in ended.stderr


TREE = ["sh", "-c", "sleep 1000 & exec setsid --fork true & set -m; sleep 1001 & echo up; wait"]


def test_the_guard_kills_the_listed_sessions_and_no_other() -> None:
    listed = subprocess.Popen(TREE, start_new_session=True, stdout=subprocess.PIPE)
    other = subprocess.Popen(["sleep", "1002"], start_new_session=True)
    taken_back = subprocess.Popen(["sleep", "1003"], start_new_session=True)
    assert listed.stdout is not None
    listed.stdout.readline()
    wait_until(lambda: len(lifeline.session_members(listed.pid)) >= 3)
    members = lifeline.session_members(listed.pid)
    guard = subprocess.Popen([sys.executable, "-I", "-S", lifeline.__file__, "guard"], stdin=subprocess.PIPE)
    guard.communicate(f"+{listed.pid}\n+{taken_back.pid}\n-{taken_back.pid}\n".encode())
    assert guard.returncode == 0
    assert not any(alive(pid) for pid in members)
    assert alive(other.pid) and alive(taken_back.pid)
    for process in (listed, other, taken_back):
        process.kill()
        process.wait()
    listed.stdout.close()


def test_kill_session_says_when_it_is_done() -> None:
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    assert lifeline.kill_session(process.pid)
    assert process.wait() == -signal.SIGKILL
    assert lifeline.kill_session(process.pid)
