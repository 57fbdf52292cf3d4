"""Commands in a container: the websocket of a pod's `exec` subresource.

A message is one byte that names a channel (0 input, 1 output, 2 errors, 3 the end) and bytes of it. The last message is a
Status on channel 3. The API server passes the connection on to the kubelet of the pod's node.

Invariants (tests/kubernetes/test_kubernetes_channels.py):
- a command's end is what channel 3 says, and nothing else: a connection that ends before that is an error, never an exit code;
- a connection that answers no ping is given up, whether or not data was to come.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from urllib.parse import quote

import aiohttp
import msgspec

from whippletree.errors import ClusterError
from whippletree.kubernetes.access import Access
from whippletree.kubernetes.objects import Status

STDIN, STDOUT, STDERR, END = 0, 1, 2, 3
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
PIECE = 32 * 1024  # bytes of input in one message
MOST_ERRORS = 8 * 1024  # bytes of the error channel that are kept
_LAST_SECONDS = 5.0  # for what is still under way when the end is known


@dataclasses.dataclass(frozen=True)
class CommandEnd:
    """How a command ended. `code` is None where the cluster could not run it, and says why in `message`; `errors` is what came
    on the error channel."""

    code: int | None
    message: str = ""
    errors: str = ""


def end_of(data: bytes) -> CommandEnd:
    """What channel 3 says. Raises ClusterError for what is no Status."""
    try:
        status = msgspec.json.decode(data, type=Status)
    except msgspec.DecodeError as error:
        raise ClusterError(f"exec: its end is no Status: {data[:80]!r}", "is a proxy in between?") from error
    if status.status == "Success":
        return CommandEnd(0)
    for cause in (status.details.causes if status.details else None) or ():
        if cause.reason == "ExitCode" and cause.message.isascii() and cause.message.isdigit():
            return CommandEnd(int(cause.message), status.message)
    return CommandEnd(None, f"{status.reason}: {status.message}".strip(": "))


def messages(data: Iterable[bytes]) -> Iterable[bytes]:
    """Input, as messages of channel 0."""
    for whole in data:
        for start in range(0, len(whole), PIECE):
            yield bytes((STDIN,)) + whole[start : start + PIECE]


class Container:
    """One container of a pod, where commands are run. Use as an asynchronous context manager. Times are in seconds."""

    def __init__(
        self, access: Access, *, namespace: str, pod: str, container: str, request_seconds: float, ping_seconds: float
    ) -> None:
        self._access = access
        self._path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/exec"
        self._container = container
        self._request_seconds = request_seconds
        self._ping_seconds = ping_seconds
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=access.tls or False, limit=0, force_close=True)
        )

    async def __aenter__(self) -> Container:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cut every connection."""
        await self._session.close()

    async def run(
        self, argv: Sequence[str], *, on_output: Callable[[bytes], None], stdin: Iterable[bytes] | None = None
    ) -> CommandEnd:
        """Run a command and wait for its end, without limit. `stdin` cannot be closed: the command has to know how much comes.

        Raises ClusterError with status 0 when the connection is lost, else with that of the refusal; what `on_output` raises.
        """
        try:
            async with asyncio.timeout(self._request_seconds):
                socket = await self._open(argv, stdin is not None)
        except aiohttp.WSServerHandshakeError as error:
            await self._access.token(fresh=error.status == 401)
            raise _refused(error) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _lost(str(error) or "no answer in time") from error
        async with socket:
            sending = asyncio.create_task(_send(socket, stdin or ()))
            try:
                return await _receive(socket, on_output)
            finally:
                sending.cancel()
                await asyncio.wait([sending])

    async def _open(self, argv: Sequence[str], stdin: bool) -> aiohttp.ClientWebSocketResponse:
        params = [("container", self._container), ("stdout", "true"), ("stderr", "true")]
        if stdin:
            params.append(("stdin", "true"))
        token = await self._access.token()
        return await self._session.ws_connect(
            self._access.server + self._path,
            params=[*params, *(("command", word) for word in argv)],
            headers={"Authorization": f"Bearer {token}"} if token else {},
            protocols=PROTOCOLS,
            heartbeat=self._ping_seconds,
            max_msg_size=0,
            timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
            server_hostname=self._access.server_name,
        )


async def _send(socket: aiohttp.ClientWebSocketResponse, data: Iterable[bytes]) -> None:
    try:
        for message in messages(data):
            await socket.send_bytes(message)
    except (aiohttp.ClientError, OSError):
        return  # the receiving side sees it too, and tells


async def _receive(socket: aiohttp.ClientWebSocketResponse, on_output: Callable[[bytes], None]) -> CommandEnd:
    end: CommandEnd | None = None
    errors = bytearray()
    while True:
        try:
            message = await socket.receive(None if end is None else _LAST_SECONDS)
        except TimeoutError:
            break
        if message.type is not aiohttp.WSMsgType.BINARY:
            if message.type is aiohttp.WSMsgType.TEXT:
                continue
            break
        data: bytes = message.data
        match data[:1]:
            case b"\x01" if len(data) > 1:
                on_output(data[1:])
            case b"\x02":
                errors += data[1 : 1 + MOST_ERRORS - len(errors)]
            case b"\x03":
                end = end_of(data[1:])
    if end is None:
        raise _lost(str(socket.exception() or "it was closed without an end"))
    return dataclasses.replace(end, errors=errors.decode("utf-8", "replace"))


def _lost(why: str) -> ClusterError:
    return ClusterError(f"exec: the connection is lost: {why}", "check the API server and the way to it")


def _refused(error: aiohttp.WSServerHandshakeError) -> ClusterError:
    hints = {
        403: "give the account the right to create pods/exec, and to get it; docs/kubernetes.md lists the rights",
        404: "the pod is gone",
    }
    return ClusterError(f"exec: {error.status} {error.message}", hints.get(error.status, ""), status=error.status)
