"""This process's launcher: the controller's end of the small process that forks keepers."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import socket
import subprocess
import sys
import threading
import weakref

from whippletree.errors import SandboxError
from whippletree.sandboxes import wire

_LAUNCHER_SECONDS = 5.0


class Launcher:
    """The small process that forks keepers, started on first use; it ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()
        atexit.register(self._drop)

    def turns(self, at_once: int) -> asyncio.Semaphore:
        """Turns to start on the running loop; the first caller says how many at once."""
        loop = asyncio.get_running_loop()
        with self._lock:
            return self._turns.setdefault(loop, asyncio.Semaphore(at_once))

    def launch(self, request: wire.BoxRequest) -> socket.socket:
        """Ask for a sandbox; our end of its lifeline. Raises SandboxError."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            for attempt in (1, 2):
                door = self._door()
                try:
                    wire.Channel(door).send(request, (theirs.fileno(),))
                    return ours
                except OSError as error:  # it was killed: start another, once
                    self._drop()
                    if attempt == 2:
                        ours.close()
                        cause = f"the launcher of sandboxes does not run: {error.strerror}"
                        raise SandboxError(cause, "look for its error above") from error
        raise AssertionError("unreachable")

    def _door(self) -> socket.socket:
        if self._socket is None:
            ours, theirs = socket.socketpair()
            path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)  # noqa: PTH100
            with theirs:
                self._process = subprocess.Popen(
                    (sys.executable, "-s", "-m", "whippletree.sandboxes.launcher", str(theirs.fileno())),
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={"PYTHONPATH": path},
                    cwd="/",
                    start_new_session=True,
                )
            self._socket = ours
        return self._socket

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()  # it ends by itself then
            self._socket = None
        if self._process is not None:
            try:
                self._process.wait(_LAUNCHER_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


@functools.lru_cache(maxsize=1)
def _launcher_of(pid: int) -> Launcher:
    return Launcher()


def launcher() -> Launcher:
    """This process's launcher (a forked child gets its own)."""
    return _launcher_of(os.getpid())
