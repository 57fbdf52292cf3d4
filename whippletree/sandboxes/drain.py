"""What processes that commands left in the background still write: the keeper reads it into nothing.

A command's output is a pipe that its client reads. When the client goes while something of the command holds the pipe, it hands
its end over, so that a server that was started by one command neither blocks nor dies of SIGPIPE during the next ones.

Invariants (tests/sandboxes/test_sandbox_drain.py): a pipe is read until all its writers have gone, and is closed then; at most
`MOST` are held, and further ones are closed at once.
"""

from __future__ import annotations

import os
import select
import socket

from whippletree.sandboxes.wire import close, receive_some

MOST = 256
_CHUNK = 65536


class Drain:
    """The pipes, and the door at which the keeper's children hand them in. `fileno` can be polled; then call `turn`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._door, self._post = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.setblocking(False)
        self._held: set[int] = set()
        self._epoll.register(self._door, select.EPOLLIN)

    def fileno(self) -> int:
        """Can be read when there is something to do."""
        return self._epoll.fileno()

    def hand_in(self, descriptors: list[int]) -> None:
        """In a child of the keeper: give it these ends of pipes. Raises OSError when it is gone."""
        socket.send_fds(self._post, [b"d"], descriptors)
        close(descriptors)

    def turn(self) -> None:
        """Take what was handed in, and read once from each pipe that has something."""
        for descriptor, _ in self._epoll.poll(0):
            if descriptor == self._door.fileno():
                self.take()
            else:
                self._read(descriptor)

    def take(self) -> None:
        """Take all that was handed in."""
        for _ in range(MOST):
            try:
                _, descriptors = receive_some(self._door, 1)
            except BlockingIOError:
                return
            for descriptor in descriptors:
                self._hold(descriptor)

    def _hold(self, descriptor: int) -> None:
        if len(self._held) >= MOST:
            os.close(descriptor)
            return
        os.set_blocking(descriptor, False)
        self._held.add(descriptor)
        self._epoll.register(descriptor, select.EPOLLIN)

    def open(self) -> int:
        """The write end of a pipe that is read into nothing; the caller closes it."""
        out, into = os.pipe()
        self._hold(out)
        return into

    def _read(self, descriptor: int) -> None:
        try:
            if os.read(descriptor, _CHUNK):
                return
        except BlockingIOError:
            return
        self._epoll.unregister(descriptor)  # first: a child that was forked meanwhile may hold it too
        self._held.discard(descriptor)
        os.close(descriptor)

    def leave(self) -> None:
        """In a child of the keeper: hold nothing but the way to hand in."""
        self._epoll.close()
        self._door.close()
        close(list(self._held))
        self._held.clear()

    @property
    def held(self) -> tuple[int, ...]:
        """Numbers (inodes) of the pipes that are read."""
        return tuple(os.fstat(descriptor).st_ino for descriptor in self._held)
