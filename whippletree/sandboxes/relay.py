"""Bytes between the listener inside a sandbox and the gateway, both ways, with back-pressure.

    harness ──► 127.0.0.1:port inside ──► Relay (the controller's loop) ──► gateway
    a slow reader pauses the other side's reading; an end of writing is passed on; either side's loss closes both

Invariants (tests/sandboxes/test_sandbox_relay.py): bytes arrive unchanged and in order, whole bodies and streams alike; half
a close is half a close; a gateway that cannot be reached closes the connection, and the next one is tried afresh.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast


class Relay:
    """Serves one listening socket until closed."""

    def __init__(
        self, listener: socket.socket, gateway: tuple[str, int], *, on_refused: Callable[[], None] | None = None
    ) -> None:
        self._listener = listener
        self._gateway = gateway
        self._allowed = True
        self._on_refused = on_refused
        self._server: asyncio.Server | None = None
        self._open: set[_Side] = set()
        self._dialling: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Accept from now on."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._server = await loop.create_server(lambda: _Side(self), sock=self._listener)

    def allow(self, allowed: bool) -> None:
        """Whether connections may pass from now on; without, those that are open are cut and new ones closed at once."""
        self._allowed = allowed
        if not allowed:
            self._cut()

    def _cut(self) -> None:
        for task in list(self._dialling):
            task.cancel()
        for side in list(self._open):
            side.abort()

    def dial(self, near: _Side) -> None:
        """Connect an accepted connection to the gateway."""
        if not self._allowed:
            near.abort()
            if self._on_refused is not None:
                self._on_refused()
            return
        task = asyncio.get_running_loop().create_task(self._dial(near))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _dial(self, near: _Side) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, far = await loop.create_connection(lambda: _Side(None), *self._gateway)
        except OSError:
            near.abort()
            return
        near.join(far)

    def track(self, side: _Side) -> None:
        """Remember an open connection."""
        self._open.add(side)

    def forget(self, side: _Side) -> None:
        """It has closed."""
        self._open.discard(side)

    async def close(self) -> None:
        """Stop accepting and cut what is open."""
        if self._server is not None:
            self._server.close()
        else:
            self._listener.close()
        self._cut()
        if self._server is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), 1.0)


class _Side(asyncio.Protocol):
    """One of the two connections of a pair. `relay` is set on the accepted one.

    Until both are there the reading is paused; what comes nevertheless (an event loop may read once before it pauses) is kept.
    """

    def __init__(self, relay: Relay | None) -> None:
        self._relay = relay
        self._peer: _Side | None = None
        self._transport: asyncio.Transport | None = None
        self._early = bytearray()
        self._lost = False
        self._received_end = False
        self._sent_end = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.pause_reading()
        if self._relay is not None:
            self._relay.track(self)
            self._relay.dial(self)

    def join(self, far: _Side) -> None:
        """Both ends are there: let the bytes flow."""
        if self._lost or self._transport is None or far._lost or far._transport is None:
            far.abort()
            self.abort()
            return
        self._peer, far._peer = far, self
        for side in (self, far):
            early, side._early = side._early, bytearray()
            if early:
                side.data_received(bytes(early))
            if side._received_end:
                side.eof_received()
        self._transport.resume_reading()
        far._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._peer is None:
            self._early += data
        elif self._peer._transport is not None:
            self._peer._transport.write(data)

    def eof_received(self) -> bool:
        self._received_end = True
        if self._peer is not None:
            self._peer._end()
            self._close_when_done()
        return True  # the other direction stays open

    def _end(self) -> None:
        """Pass the end of the peer's data on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()
        self._sent_end = True
        self._close_when_done()

    def _close_when_done(self) -> None:
        if self._received_end and self._sent_end and self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        if self._peer is not None and self._peer._transport is not None:
            self._peer._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._peer is not None and self._peer._transport is not None and not self._peer._lost:
            self._peer._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._relay is not None:
            self._relay.forget(self)
        if self._peer is not None and self._peer._transport is not None:
            self._peer._transport.close()

    def abort(self) -> None:
        """Cut this connection, and with it its peer."""
        if self._transport is not None:
            self._transport.abort()
