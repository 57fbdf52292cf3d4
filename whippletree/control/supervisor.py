"""Starts processes on this machine, keeps them alive and ends them: engine, gateway workers, controller, learner.

    caller ── start(spec) ──► keeper thread of that child: fork ─► wait until ready ─► wait for its end ─► back off ─┐
       ▲                            │                        ▲                                                       │
       └── ready file's bytes ──────┘                        └───────────────────────────────────────────────────────┘
    stop(name): SIGTERM to the child ─► after stop_seconds SIGKILL ─► SIGKILL to what is left of its session

`start` blocks until the child is ready, has died for good, or the limit is over. A keeper blocks in waitpid only. The thread
that forks a child lives as long as the child does, which is what the kernel's parent-death signal is tied to.

Invariants (tests/control/test_supervisor.py):
- each child has a session of its own: a terminal's Ctrl-C reaches the supervisor alone;
- after `stop`, and after any death of a child, no process of its session and no zombie is left;
- after kill -9 of the supervisor no process of any child's session is left;
- a failure to get ready says what was waited for and ends with the child's last lines of output;
- `close` stops children in the reverse order of their start.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from whippletree.control import lifeline
from whippletree.control.guard import Guard
from whippletree.control.policy import RestartPolicy, Restarts
from whippletree.errors import ProcessError
from whippletree.types import Struct

log = logging.getLogger(__name__)

READY_POLL_SECONDS = 0.02
TAIL_BYTES = 4000


class ChildSpec(Struct):
    """One process to supervise. `environment` is added to the supervisor's own. Output is appended to `log_path`.

    The child writes `ready_file` (JSON; written elsewhere and renamed, so that it is whole) once it serves; "" means that it
    is ready when it runs. A restarted child must come back at the same address, so give it a fixed port.
    `final_codes`: exit statuses that end it for good: 0 is then "finished", any other "failed"; every other end is a restart.

    Example: ChildSpec(name="engine", argv=("python", "-m", "engine"), log_path="run/engine.log", ready_file="run/engine.json")
    """

    name: str
    argv: tuple[str, ...]
    log_path: str
    environment: dict[str, str] = {}
    ready_file: str = ""
    ready_seconds: float = 120.0
    stop_seconds: float = 10.0
    restart: RestartPolicy = RestartPolicy()
    final_codes: tuple[int, ...] = ()


class ChildStatus(Struct):
    """A child as it stands. `restarts` counts starts after the first; `error` is set once it was given up.

    Example: ChildStatus(name="engine", state="ready", pid=4711, restarts=0)
    """

    name: str
    state: str
    pid: int
    restarts: int
    error: str = ""


class Supervisor:
    """Owns children by name. Safe from any thread. Use as a context manager, or call `close`."""

    def __init__(self, on_failure: Callable[[ChildStatus], None] | None = None) -> None:
        """`on_failure` is called, on a keeper's thread, when a child that had been ready is given up."""
        self._children: dict[str, _Keeper] = {}
        self._lock = threading.Lock()
        self._guard = Guard()
        self._on_failure = on_failure

    def start(self, spec: ChildSpec) -> bytes:
        """Start a child and wait until it is ready; returns the bytes of its ready file. Raises ProcessError."""
        with self._lock:
            if spec.name in self._children:
                raise ProcessError(f"a child named {spec.name} is running already", "stop it first")
            keeper = self._children[spec.name] = _Keeper(spec, self._guard, self._on_failure)
        keeper.thread.start()
        keeper.settled.wait()
        if keeper.error:
            self.stop(spec.name)
            raise ProcessError(keeper.error, f"its log is {spec.log_path}")
        return keeper.ready

    def stop(self, name: str) -> None:
        """End a child and everything in its session; unknown names are ignored."""
        with self._lock:
            keeper = self._children.get(name)
        if keeper is None:
            return
        keeper.stop()
        with self._lock:
            self._children.pop(name, None)

    def restart(self, spec: ChildSpec) -> bytes:
        """Stop the child of that name, if any, and start it by `spec`. Raises ProcessError."""
        self.stop(spec.name)
        return self.start(spec)

    def status(self) -> list[ChildStatus]:
        """Every child, in the order of their start."""
        with self._lock:
            return [keeper.status() for keeper in self._children.values()]

    def finished(self, name: str) -> bool:
        """True once a child ended with status 0 and that was final."""
        return any(child.name == name and child.state == "finished" for child in self.status())

    def check(self) -> None:
        """Raise ProcessError if a child was given up; call it from loops that wait for what children do."""
        for child in self.status():
            if child.state == "failed":
                raise ProcessError(child.error, "start the run again once the cause is mended; it resumes")

    def close(self) -> None:
        """Stop all children, the last started first."""
        with self._lock:
            names = list(self._children)
        for name in reversed(names):
            self.stop(name)
        self._guard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _Keeper:
    """One child and the thread that forks it, waits for it and starts it again."""

    def __init__(self, spec: ChildSpec, guard: Guard, on_failure: Callable[[ChildStatus], None] | None) -> None:
        self.spec = spec
        self.settled = threading.Event()  # ready for the first time, or given up
        self.ready = b""
        self.error = ""
        self.thread = threading.Thread(target=self._keep, name=f"keeper-{spec.name}", daemon=True)
        self._guard = guard
        self._on_failure = on_failure
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._log_start = 0
        self._state = "starting"
        self._code: int | None = None

    def status(self) -> ChildStatus:
        pid = self._process.pid if self._process and self._state in ("starting", "ready") else 0
        return ChildStatus(name=self.spec.name, state=self._state, pid=pid, restarts=max(0, self._starts - 1), error=self.error)

    def stop(self) -> None:
        self._stopping.set()
        limit = time.monotonic() + self.spec.stop_seconds
        number = signal.SIGTERM
        while self.thread.is_alive():
            process = self._process
            if process is not None and process.poll() is None:
                process.send_signal(number)
            self.thread.join(max(0.1, limit - time.monotonic()))
            number = signal.SIGKILL

    def _keep(self) -> None:
        restarts = Restarts(self.spec.restart)
        try:
            while not self._stopping.is_set():
                problem = self._live_once()
                if self._stopping.is_set():
                    break
                if self._code in self.spec.final_codes:
                    self._end_for_good(problem)
                    return
                delay = restarts.next_delay(time.monotonic()) if self.settled.is_set() else None
                log.warning("%s; %s", problem, "given up" if delay is None else f"started again in {delay:.1f} s")
                if delay is None:
                    self._give_up(problem)
                    return
                self._stopping.wait(delay)
            self._state = "stopped"
        finally:
            self.settled.set()

    def _end_for_good(self, problem: str) -> None:
        if self._code == 0:
            self._state = "finished"
        else:
            self._give_up(problem)

    def _give_up(self, problem: str) -> None:
        self.error, self._state = problem, "failed"
        if self.settled.is_set() and self._on_failure is not None:
            self._on_failure(self.status())

    def _live_once(self) -> str:
        """Fork the child and stay until it ended; returns what went wrong."""
        self._state = "starting"
        if self.spec.ready_file:
            Path(self.spec.ready_file).unlink(missing_ok=True)
        try:
            process = self._process = self._fork()
        except OSError as error:
            return f"{self.spec.name} cannot be started: {error}"
        try:
            problem = self._await_ready(process)
            if not problem:
                self._state = "ready"
                self.settled.set()
                problem = f"{self.spec.name} was up, then {_describe(process.wait())}"
        finally:
            if process.poll() is None:
                process.kill()
            self._code = process.wait()
            if not lifeline.kill_session(process.pid):
                log.error("%s: processes of session %d survive SIGKILL", self.spec.name, process.pid)
            self._guard.forget(process.pid)
        return f"{problem}\n{tail(Path(self.spec.log_path), self._log_start)}".rstrip()

    def _fork(self) -> subprocess.Popen[bytes]:
        Path(self.spec.log_path).parent.mkdir(parents=True, exist_ok=True)
        with Path(self.spec.log_path).open("ab") as output:
            self._log_start = output.tell()
            process = subprocess.Popen(
                [*lifeline.exec_prefix(os.getpid()), *self.spec.argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.spec.environment},
                start_new_session=True,
            )
        self._guard.watch(process.pid)
        self._starts += 1
        return process

    def _await_ready(self, process: subprocess.Popen[bytes]) -> str:
        """ "" once ready, else what went wrong."""
        if not self.spec.ready_file:
            return ""
        ready = Path(self.spec.ready_file)
        limit = time.monotonic() + self.spec.ready_seconds
        waited_for = f"{self.spec.name} was waited for to write {ready}"
        while not ready.exists():
            if (code := process.poll()) is not None:
                return f"{waited_for}, but {_describe(code)}"
            if self._stopping.is_set():
                return f"{waited_for}, but it was stopped"
            if time.monotonic() > limit:
                return f"{waited_for}, but did not within {self.spec.ready_seconds:g} s"
            self._stopping.wait(READY_POLL_SECONDS)
        self.ready = ready.read_bytes()
        return ""


def tail(path: Path, since: int = 0, limit: int = TAIL_BYTES) -> str:
    """The last lines of a log file: at most `limit` bytes, none before byte `since`; "" when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(since, path.stat().st_size - limit, 0))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def _describe(code: int) -> str:
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    return f"it exited with status {code}"
