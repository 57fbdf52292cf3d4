"""The load, a process of its own: `python -m gateway_parts.load PLAN.msgpack` sends what the plan says, prints a line of JSON.

Requests are bytes made beforehand; a reply is read to its end and checked for its status only, so that the load costs little
beside what it measures. One connection sends its rollouts' requests one after another, in passes: pass 0 is every rollout's
first request, pass 1 its second, and so on; each pass is timed by itself, over all connections together.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import msgspec
import uvloop


class Request(msgspec.Struct, kw_only=True):
    """One request: the port it goes to, and its bytes with headers."""

    port: int
    data: bytes


class Plan(msgspec.Struct, kw_only=True):
    """`connections[c][p]`: what connection c sends in pass p, in order. `content`: what the first content has in it. `spread`:
    in each pass the connections start one after another, evenly over so many seconds; 0.0: all at once.
    """

    connections: list[list[list[Request]]]
    content: bytes = b""
    spread: float = 0.0
    limit: float = 300.0


class PassResult(msgspec.Struct, kw_only=True):
    """Seconds that a pass took, calls answered with 200, others, and milliseconds to the first content (one per call)."""

    seconds: float
    answered: int
    failed: int
    first_ms: list[float]


class Wire(asyncio.Protocol):
    """One HTTP/1.1 connection that knows when a reply has ended."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._buffer = bytearray()
        self._body = -1  # where the body begins
        self._length = -1  # its length; -2: chunked
        self._done: asyncio.Future[bool] | None = None
        self.first = 0.0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        if self._done is not None and not self._done.done():
            self._done.set_result(False)

    def send(self, data: bytes) -> asyncio.Future[bool]:
        self._buffer.clear()
        self._body = self._length = -1
        self.first = 0.0
        self._done = asyncio.get_running_loop().create_future()
        assert self.transport is not None
        self.transport.write(data)
        return self._done

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        seen = len(buffer)
        buffer += data
        if self._body < 0:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._body = end + 4
            head = bytes(buffer[:end]).lower()
            place = head.find(b"content-length:")
            self._length = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else -2
        if not self.first and (buffer.find(self._content, max(self._body, seen - 64)) >= 0 if self._content else True):
            self.first = time.perf_counter()
        ended = buffer.endswith(b"0\r\n\r\n") if self._length == -2 else len(buffer) >= self._body + self._length
        if ended and self._done is not None and not self._done.done():
            self._done.set_result(buffer.startswith(b"HTTP/1.1 200"))


async def connect(port: int, content: bytes) -> Wire:
    """A new connection."""
    _, wire = await asyncio.get_running_loop().create_connection(lambda: Wire(content), "127.0.0.1", port)
    return wire


class Client:
    """One connection of the plan."""

    def __init__(self, plan: Plan, passes: list[list[Request]]) -> None:
        self._plan = plan
        self._passes = passes
        self._wires: dict[int, Wire] = {}

    async def run(self, number: int, result: PassResult, pause: float) -> None:
        await asyncio.sleep(pause)
        for request in self._passes[number]:
            wire = self._wires.get(request.port)
            if wire is None or wire.transport is None:
                wire = self._wires[request.port] = await connect(request.port, self._plan.content)
            started = time.perf_counter()
            try:
                async with asyncio.timeout(self._plan.limit):
                    good = await wire.send(request.data)
            except TimeoutError:
                good = False
                del self._wires[request.port]
            if good:
                result.answered += 1
                result.first_ms.append(1e3 * (wire.first - started))
            else:
                result.failed += 1


async def run(plan: Plan) -> list[PassResult]:
    """All passes, one after another."""
    clients = [Client(plan, passes) for passes in plan.connections]
    results = []
    for number in range(len(plan.connections[0])):
        result = PassResult(seconds=0.0, answered=0, failed=0, first_ms=[])
        started = time.perf_counter()
        outcomes = await asyncio.gather(
            *(client.run(number, result, plan.spread * place / len(clients)) for place, client in enumerate(clients)),
            return_exceptions=True,
        )
        result.seconds = time.perf_counter() - started
        result.failed += sum(isinstance(outcome, BaseException) for outcome in outcomes)
        results.append(result)
    return results


def main() -> None:
    """Run the plan."""
    plan = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    results = uvloop.run(run(plan))
    print(json.dumps(msgspec.to_builtins(results)))


if __name__ == "__main__":
    main()
