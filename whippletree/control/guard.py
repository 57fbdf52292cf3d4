"""The process that cleans up after this one: see `lifeline.guard`.

Invariants (tests/control/test_supervisor.py): it outlives kill -9 of its owner just long enough to kill every listed session;
when it is killed itself, the next child's start brings a new one that knows the whole list.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

from whippletree.control import lifeline

log = logging.getLogger(__name__)


class Guard:
    """The process that kills the listed sessions when this one ends in whatever way. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: set[int] = set()

    @property
    def pid(self) -> int:
        """Process id of the guard; 0 when none runs."""
        with self._lock:
            return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def watch(self, session: int) -> None:
        """Kill this session should this process end."""
        with self._lock:
            self._sessions.add(session)
            self._send(b"+%d\n" % session)

    def forget(self, session: int) -> None:
        """The session is empty; its number may come back for somebody else's."""
        with self._lock:
            self._sessions.discard(session)
            self._send(b"-%d\n" % session)

    def close(self) -> None:
        """End the guard; it kills what is still listed."""
        with self._lock:
            if self._process is not None:
                self._process.communicate()
                self._process = None

    def _send(self, line: bytes) -> None:
        if self._process is not None and self._process.poll() is None:
            try:
                self._write(line)
                return
            except BrokenPipeError:
                log.warning("the guard process died; a new one takes over")
        if self._process is not None:
            self._process.communicate()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", lifeline.__file__, "guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._write(b"".join(b"+%d\n" % session for session in sorted(self._sessions)))

    def _write(self, data: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(data)
            self._process.stdin.flush()
