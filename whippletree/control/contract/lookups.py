"""The name look-ups of a sandbox, by name: a resolver on 127.0.0.1:53 inside its network that knows no name.

A sandbox looks names up in files alone; `SWITCH` stands for its nsswitch.conf in a check, so that this resolver is asked too.
A sandbox has the loopback interface only. Resolvers that first look which kinds of address the machine has would refuse without
asking anybody, and nothing would be seen; so loopback gets an address of the documentation's network besides, from which
nothing leads anywhere. Only root may enter the network of a sandbox: for others there is no log, and look-ups are not seen.

Invariants (tests/control/test_contract_lookups.py): each name that is looked up inside is noted and refused at once; no thread
and no socket is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Iterator

from whippletree.sandboxes import kernel

_SIOCSIFADDR, _SIOCSIFNETMASK = 0x8916, 0x891C
_ADDRESS, _MASK = "192.0.2.1", "255.255.255.255"
_NO_SUCH_NAME = 0x8183
_HEADER = 12  # bytes

SWITCH = "passwd: files\ngroup: files\nhosts: files dns\n"
SWITCH_PATH = "/etc/nsswitch.conf"
_READ = 4096


@contextlib.contextmanager
def noted(pid: int) -> Iterator[list[str] | None]:
    """The names that are looked up in the network of the process `pid` while the body runs; None where that cannot be seen.
    Needs a running event loop."""
    listener = _listener(pid)
    if listener is None:
        yield None
        return
    names: list[str] = []
    loop = asyncio.get_running_loop()
    loop.add_reader(listener, _answer, listener, names)
    try:
        yield names
    finally:
        loop.remove_reader(listener)
        listener.close()


def _listener(pid: int) -> socket.socket | None:
    """A socket in another network: made on a thread of its own, which enters that network and ends."""
    made: list[socket.socket] = []

    def enter() -> None:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/ns/net", "rb") as namespace:  # noqa: PTH123  (for its descriptor)
            kernel.setns(namespace.fileno(), kernel.CLONE_NEWNET)
            listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            try:
                _address(listener)
                listener.bind(("127.0.0.1", 53))
            except OSError:
                listener.close()
                raise
            made.append(listener)

    if os.geteuid() == 0:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    return made[0] if made else None


def _address(any_socket: socket.socket) -> None:
    """Give loopback a second address, of one machine."""
    for request, value in ((_SIOCSIFADDR, _ADDRESS), (_SIOCSIFNETMASK, _MASK)):
        address = struct.pack("<HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
        fcntl.ioctl(any_socket, request, struct.pack("16s16s8x", b"lo:1", address))


def _answer(listener: socket.socket, names: list[str]) -> None:
    with contextlib.suppress(BlockingIOError):
        data, peer = listener.recvfrom(_READ)
        name, end = question(data)
        if name:
            names.append(name)
        header = data[:2] + struct.pack(">HHHHH", _NO_SUCH_NAME, 1 if name else 0, 0, 0, 0)
        with contextlib.suppress(OSError):
            listener.sendto(header + data[_HEADER:end], peer)


def question(data: bytes) -> tuple[str, int]:
    """The name that a DNS query asks for, and where its question ends; ("", 12) where it is none."""
    labels: list[str] = []
    place = _HEADER
    while place < len(data) and data[place]:
        length = data[place]
        labels.append(data[place + 1 : place + 1 + length].decode("ascii", errors="replace"))
        place += 1 + length
    end = place + 5
    return (".".join(labels), end) if labels and end <= len(data) else ("", _HEADER)
