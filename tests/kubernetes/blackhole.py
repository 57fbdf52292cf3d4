"""A way to the API server that can be made to swallow everything, as a firewall does that drops packets."""

from __future__ import annotations

import asyncio
import contextlib


class Blackhole:
    """Forwards TCP connections. What is open when `drop` is called stays open, and nothing comes through it any more."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._swallowing: list[asyncio.Event] = []
        self._tasks: set[asyncio.Task] = set()
        self.refusing = False  # new connections are swallowed too
        self.opened = 0
        self.port = 0

    async def __aenter__(self) -> Blackhole:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop(self, *, new: bool = False) -> None:
        """Swallow what is open now; with `new`, what comes later too."""
        self.refusing = new
        for event in self._swallowing:
            event.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        dropped = asyncio.Event()
        if self.refusing:
            dropped.set()
        self._swallowing.append(dropped)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(_pump(reader, back, dropped), _pump(there, writer, dropped))
        finally:
            self._tasks.discard(task)
            for end in (writer, back):
                with contextlib.suppress(Exception):
                    end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dropped: asyncio.Event) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            if dropped.is_set():
                await asyncio.Event().wait()  # neither data nor an end comes through
            writer.write(data)
            await writer.drain()
        if dropped.is_set():
            await asyncio.Event().wait()
        writer.close()
