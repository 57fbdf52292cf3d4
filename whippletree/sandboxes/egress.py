"""The proxy of a sandbox: what commands inside reach by HTTP_PROXY and HTTPS_PROXY, and no further than the allow-list.

    command ──► 127.0.0.1:proxy_port inside ──CONNECT host:port, or GET http://host/──► Egress (the controller's loop)
      on the list? ──► its addresses, resolved here ──► public, or listed themselves? ──► connected, then bytes both ways
      anything else is answered 403 and reported; a policy that changes cuts the connections that it no longer allows

Invariants (tests/sandboxes/test_sandbox_egress.py): nothing is connected to, and no name is looked up, that the list does not
hold; each refusal is reported with its time; heads, connections and waits have limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Coroutine, Iterable

from whippletree.protocols import NetworkRefusal
from whippletree.sandboxes import egress_rules
from whippletree.sandboxes.egress_rules import Target

Report = Callable[[NetworkRefusal], None]
_HEAD_SECONDS, _DIAL_SECONDS, _CLOSE_SECONDS = 15.0, 15.0, 1.0
_CONNECTIONS = 128
_CHUNK = 65536


class _Refused(Exception):
    """A request that may not leave; the text says why."""

    def __init__(self, reason: str, target: Target = ("", 0), address: str = "") -> None:
        super().__init__(reason)
        self.refusal = NetworkRefusal(time=time.time(), host=target[0], port=target[1], address=address, reason=reason)


class Egress:
    """Serves one listening socket until closed."""

    def __init__(self, listener: socket.socket, report: Report) -> None:
        self._listener = listener
        self._report = report
        self._rules: frozenset[Target] = frozenset()
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], tuple[Target, str] | None] = {}  # what was asked for; "": no address yet

    def allow(self, rules: Iterable[Target]) -> None:
        """Allow these from now on, and nothing else: other connections are cut."""
        self._rules = frozenset(rules)
        for task, found in self._open.items():
            if found is not None and not self._allowed(*found):
                task.cancel()

    def _allowed(self, target: Target, address: str) -> bool:
        addresses = [address] if address else []
        return egress_rules.listed(target, self._rules) and self._permitted(addresses, target) == addresses

    def _permitted(self, addresses: list[str], target: Target) -> list[str]:
        return egress_rules.permitted(addresses, target[1], self._rules)

    async def start(self) -> None:
        """Accept from now on."""
        self._listener.setblocking(False)
        self._server = await asyncio.start_server(self._accept, sock=self._listener, limit=egress_rules.HEAD_LIMIT)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open[task] = None
        task.add_done_callback(lambda done: self._open.pop(done, None))

    async def close(self) -> None:
        """Stop accepting and cut what is open."""
        if self._server is None:
            self._listener.close()
            return
        self._server.close()
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._server.wait_closed(), _CLOSE_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._forward(reader, writer)
        except _Refused as refused:
            self._report(refused.refusal)
            await _answer(reader, writer, "403 Forbidden", f"refused: {refused}")
        except (OSError, TimeoutError) as error:
            await _answer(reader, writer, "502 Bad Gateway", f"not reached: {error or 'time is up'}")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await _answer(reader, writer, "400 Bad Request", "no head of a request, or one that is too long")
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) > _CONNECTIONS:
            raise _Refused(f"more than {_CONNECTIONS} connections at once")
        async with asyncio.timeout(_HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        try:
            wanted = egress_rules.request_of(head)
        except ValueError as error:
            raise _Refused(str(error)) from error
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = (wanted.target, "")
        far_reader, far_writer, address = await self._dial(wanted.target)
        self._open[task] = (wanted.target, address)
        try:
            if not self._allowed(wanted.target, address):  # the rules have changed while it was connected
                raise _Refused("not on the allow-list", wanted.target, address)
            if wanted.forward:
                far_writer.write(wanted.forward)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await _both(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            far_writer.transport.abort()

    async def _dial(self, target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
        host, port = target
        if not egress_rules.listed(target, self._rules):
            raise _Refused("not on the allow-list", target)
        async with asyncio.timeout(_DIAL_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        failure: OSError | TimeoutError | None = None
        for address in self._permitted(addresses, target):
            try:
                async with asyncio.timeout(_DIAL_SECONDS):
                    return *await asyncio.open_connection(address, port), address
            except (OSError, TimeoutError) as error:
                failure = error
        if failure is None:
            raise _Refused("not a public address, and not itself on the allow-list", target, ", ".join(addresses))
        raise failure


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _both(*pumps: Coroutine[None, None, None]) -> None:
    """Run both ways to their ends; the loss of one ends the other."""
    tasks = [asyncio.get_running_loop().create_task(pump) for pump in pumps]
    try:
        await asyncio.gather(*tasks)
    except ConnectionError:
        return  # one side is gone: so is the other, now
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: str, text: str) -> None:
    """Answer and end. What still comes is read and dropped for a moment: closing before would take the answer back."""
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            writer.write(head.encode() + body)
            await writer.drain()
            writer.write_eof()
            while await reader.read(_CHUNK):
                pass
