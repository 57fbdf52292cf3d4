"""The launcher: a small process that forks keepers, so that no controller, big and threaded as it may be, has to fork itself.

`python -m whippletree.sandboxes.launcher FD` reads BoxRequests from the inherited socket FD until it closes. It owns nothing:
each keeper lives by the lifeline that came with its request.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import time

from whippletree.sandboxes import cgroups, keeper, machine, wire

_LAST_SECONDS = 1.0


def main(descriptor: int) -> None:
    """Serve until the controller is gone."""
    door = socket.socket(fileno=descriptor)
    door.set_inheritable(False)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps keepers
    os.umask(0o022)
    cgroups.hierarchies()  # once for all keepers
    gc.collect()
    gc.freeze()
    gc.disable()  # helpers are short or idle, and a collection would touch every page that forks share
    channel = wire.Channel(door)
    while (received := channel.receive()) is not None:
        message, descriptors = received
        if isinstance(message, wire.BoxRequest) and len(descriptors) == 1:
            machine.fork(lambda: _keep(door, message, descriptors[0]))  # noqa: B023  (it is called before the next turn)
        wire.close(descriptors)
    _see_off()


def _see_off() -> None:
    """Stay for keepers that are about to end: an init that does not reap would keep what becomes its child as a zombie."""
    deadline = time.monotonic() + _LAST_SECONDS
    with contextlib.suppress(ChildProcessError):  # there is none
        while time.monotonic() < deadline:
            os.waitpid(-1, os.WNOHANG)
            time.sleep(0.005)


def _keep(door: socket.socket, request: wire.BoxRequest, lifeline: int) -> int:
    door.close()
    with socket.socket(fileno=lifeline) as connection:
        return keeper.keep(request, connection)


if __name__ == "__main__":
    main(int(sys.argv[1]))
