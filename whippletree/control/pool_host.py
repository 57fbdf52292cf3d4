"""A pool host: imports one harness once, then runs many attempts of it, each on a thread.

Started by a pool as `python -m whippletree.control.pool_host`.

    main thread: read Run ─► new thread: harness.run(spec) ─► Done
    It blocks on the socket only; the end of the socket, or of the parent, ends the process whatever its tenants do.

Invariants (tests/control/test_pool.py):
- a tenant's exception becomes its own result, with the end of the traceback, and disturbs no other tenant;
- the host is gone soon after its parent is, also when tenants are stuck.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import sys
import threading
import time
import traceback
from pathlib import Path

from whippletree.control.lifeline import exit_with_parent
from whippletree.control.policy import MESSAGE_LIMIT
from whippletree.control.wire import Done, Failed, Ready, Report, Run, decode_order, encode
from whippletree.errors import ConfigurationError, SandboxError
from whippletree.harnesses import load_harness
from whippletree.protocols import HarnessResult, PoolHarness
from whippletree.types import Cause, CauseClass


class Host:
    """Serves one socket until its other end closes it."""

    def __init__(self, channel: socket.socket, harness: PoolHarness) -> None:
        self._channel = channel
        self._harness = harness
        self._sending = threading.Lock()

    def send(self, message: Report) -> None:
        """Write one whole message; safe from any thread."""
        with self._sending:
            self._channel.sendall(encode(message))

    def serve(self) -> None:
        """Start tenants as they come, until the socket's end."""
        with self._channel.makefile("rb") as lines:
            for line in lines:
                order = decode_order(line)
                threading.Thread(target=self._tenant, args=(order,), name=f"tenant-{order.tenant}", daemon=True).start()

    def _tenant(self, order: Run) -> None:
        cause = None
        try:
            result = self._harness.run(order.spec)
        except BaseException as error:  # noqa: BLE001 (another's code: whatever it raises, SystemExit too, is its own result)
            result = HarnessResult(exit_status=type(error).__name__, crashed=True, message=last_lines(error))
            cause = blame(error)
        self.send(Done(tenant=order.tenant, result=result, cause=cause))


def blame(error: BaseException) -> Cause | None:
    """The cause of a tenant's exception where it is plainly not the harness's fault."""
    if isinstance(error, SandboxError | ConfigurationError):
        kind = CauseClass.SANDBOX if isinstance(error, SandboxError) else CauseClass.CONFIGURATION
        return Cause(cause=kind, phase="agent", message=error.cause, next_step=error.next_step)
    return None


def last_lines(error: BaseException) -> str:
    """The end of a traceback, as much of it as a record keeps."""
    return "".join(traceback.format_exception(error)).strip()[-MESSAGE_LIMIT:]


def load(name: str, directory: Path | None = None) -> PoolHarness:
    """Find a harness by name and import what it needs. Raises HarnessError, or whatever that import raises."""
    harness = load_harness(name, directory)
    if not isinstance(harness, PoolHarness):
        raise TypeError(f'harness {name} cannot run inside a pool host; set launch = "process"')
    harness.load()
    return harness


def main(argv: list[str]) -> int:
    """Load the harness, say so, serve."""
    parser = argparse.ArgumentParser(prog="whippletree.control.pool_host", description=__doc__.splitlines()[0])
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the pool")
    parser.add_argument("--parent", type=int, required=True, help="process to die with")
    parser.add_argument("--harness", required=True, help='name, or "module:Class"')
    parser.add_argument("--harness-directory", type=Path, help="where harnesses are installed")
    arguments = parser.parse_args(argv)
    exit_with_parent(arguments.parent)
    channel = socket.socket(fileno=arguments.fd)
    channel.set_inheritable(False)
    started = time.monotonic()
    try:
        harness = load(arguments.harness, arguments.harness_directory)
    except Exception as error:  # noqa: BLE001 (another's import: the pool is told, and the host ends)
        channel.sendall(encode(Failed(message=last_lines(error))))
        return 1
    host = Host(channel, harness)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    host.send(
        Ready(
            pid=os.getpid(),
            seconds=time.monotonic() - started,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            rss_mb=usage.ru_maxrss / 1024,
        )
    )
    host.serve()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a stuck tenant's thread must not keep the process
