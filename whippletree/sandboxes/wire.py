"""What the controller, the launcher, the keepers and the clients say to each other over unix sockets.

Each message is a 4-byte big-endian length and MessagePack of one struct; file descriptors travel with the first byte. Standard
library and msgspec only: the small helper processes import nothing else of this package's dependencies.

Invariants (tests/sandboxes/test_sandbox_wire.py): messages round-trip, whole or split; an end in mid-message is an error, a
clean end is None.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from typing import Literal, dataclass_transform

import msgspec

HEADER = struct.Struct(">I")
MESSAGE_LIMIT = 64 * 1024 * 1024
DESCRIPTORS = 4


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Wire(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of messages; the key "type" names the struct."""


class BoxRequest(Wire):
    """Controller → launcher: make a sandbox (carries the keeper's end of the lifeline). Limits of 0 mean none.

    `token` is this request's alone: it tells this sandbox from an earlier or other one of the same name. `restored` is the
    directory of a snapshot, whose processes come back with `processes_too`; `owner` is the number of its user; `user` is who
    runs commands that name nobody.

    Example: BoxRequest(backend="bubblewrap", sandbox_id="s0-1", root="/tmp/whippletree-0", workdir="/app", bwrap="bwrap")
    """

    backend: Literal["bubblewrap", "podman", "process", "runc"]
    sandbox_id: str
    root: str
    workdir: str
    token: str = ""
    bwrap: str = ""
    runc: str = ""
    criu: str = ""
    podman: str = ""
    start_seconds: float = 20.0
    rootfs: str = ""
    restored: str = ""
    processes_too: bool = True
    owner: int = 0
    files: tuple[tuple[str, str], ...] = ()
    read_only: tuple[tuple[str, str], ...] = ()
    environment: dict[str, str] = {}
    ports: tuple[int, ...] = ()
    memory_mb: int = 0
    processes: int = 0
    open_files: int = 0
    file_mb: int = 0
    space_mb: int = 256
    cpus: float = 0.0
    user: str = ""
    cgroup: str = ""


class Ready(Wire):
    """Keeper → controller: it runs (carries a listener of 127.0.0.1 inside for each of the request's ports, in their order).

    Example: Ready(pid=4711, workdir="/app", cgroups=("/sys/fs/cgroup/pids/whippletree-s0-1",))
    """

    pid: int
    workdir: str
    environment: dict[str, str]
    cgroups: tuple[str, ...] = ()
    owner: int = 0


class Stop(Wire):
    """Controller → keeper: end everything and remove it. Example: Stop()"""


class Freeze(Wire):
    """Controller → keeper: make a snapshot; running commands may take `seconds` to end.

    Example: Freeze(directory="/runs/a/snapshots/s0-1", seconds=30.0)
    """

    directory: str
    seconds: float


class Frozen(Wire):
    """Keeper → controller: the snapshot is there. Example: Frozen(holds="files", reason="there is no criu program", ...)"""

    holds: Literal["processes+files", "files"]
    reason: str
    frozen_seconds: float
    files_bytes: int
    processes_bytes: int


class Exec(Wire):
    """Client → keeper: run a command (carries the write end of its output). Answer: Exited, then the client says Finish.

    Example: Exec(argv=(b"ls",), cwd="/app", environment={"PATH": "/usr/bin"})
    """

    argv: tuple[bytes, ...]
    cwd: str
    environment: dict[str, str]
    user: str = ""


class Exited(Wire):
    """Keeper → client: the command ended; negative codes are signals, as in `subprocess`. Example: Exited(code=0)"""

    code: int


class Finish(Wire):
    """Client → keeper: end of the exchange; `kill`: everything that the command started. Without, it may carry the read end of
    an output that something still holds. Example: Finish(kill=True)"""

    kill: bool = False


class Put(Wire):
    """Client → keeper: copy what the carried descriptor names to `target`. Example: Put(target="/tests")"""

    target: str


class Read(Wire):
    """Client → keeper: the first `limit` bytes of a regular file. Example: Read(path="/logs/reward.txt", limit=4096)"""

    path: str
    limit: int


class Content(Wire):
    """Keeper → client: a file's bytes, None when it does not exist. Example: Content(data=b"1\\n")"""

    data: bytes | None


class Get(Wire):
    """Client → keeper: copy `path` into the directory behind the carried descriptor, at most `limit` bytes.

    Example: Get(path="/app/artifacts", limit=100_000_000)
    """

    path: str
    limit: int


class Got(Wire):
    """Keeper → client: what was copied out. Example: Got(files=2, bytes=1024, skipped=("artifacts/latest",))"""

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()


class Measure(Wire):
    """Client → keeper: how much is used. Example: Measure()"""


class Measured(Wire):
    """Keeper → client: what is used; None where nothing counts it.

    Example: Measured(processes=3, disk_bytes=40960, cpu_seconds=1.25, memory_peak_bytes=73400320)
    """

    processes: int
    disk_bytes: int
    cpu_seconds: float
    memory_peak_bytes: int | None = None


class KillAll(Wire):
    """Client → keeper: end every process that was started inside. Example: KillAll()"""


class Done(Wire):
    """It is done. Example: Done()"""


class Failed(Wire):
    """It could not be done. Example: Failed(message="bwrap: Can't find source path /nowhere", next_step="...")"""

    message: str
    next_step: str = ""


Message = (
    BoxRequest
    | Ready
    | Stop
    | Freeze
    | Frozen
    | Exec
    | Exited
    | Finish
    | Put
    | Read
    | Content
    | Get
    | Got
    | Measure
    | Measured
    | KillAll
    | Done
    | Failed
)
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Length and MessagePack."""
    body = msgspec.msgpack.encode(message)
    return HEADER.pack(len(body)) + body


class Channel:
    """A blocking connection that carries messages."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._assembler = Assembler()

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send one message. Raises OSError when the other end is gone."""
        data = encode(message)
        sent = socket.send_fds(self.socket, [data], list(descriptors)) if descriptors else 0
        if sent < len(data):
            self.socket.sendall(data[sent:])

    def receive(self) -> tuple[Message, list[int]] | None:
        """One message and its descriptors (close-on-exec); None at a clean end. Raises OSError when it is cut short."""
        while True:
            received = self._assembler.take()
            if received is not None:
                return received
            data, descriptors = receive_some(self.socket)
            if not data:
                self._assembler.end()
                return None
            self._assembler.feed(data, descriptors)


def receive_some(connection: socket.socket, size: int = 65536) -> tuple[bytes, list[int]]:
    """Some bytes and the descriptors that came with them; b"" at the end."""
    space = socket.CMSG_SPACE(DESCRIPTORS * array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
    return data, list(found)


class Assembler:
    """Puts messages together from any split of their bytes."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._descriptors: list[int] = []

    def feed(self, data: bytes, descriptors: list[int]) -> None:
        """Further bytes, in order."""
        self._data += data
        self._descriptors += descriptors

    def take(self) -> tuple[Message, list[int]] | None:
        """The next message, once it is whole. Raises OSError when it cannot be one."""
        if len(self._data) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._data)
        if length > MESSAGE_LIMIT:
            raise ConnectionAbortedError(f"a message of {length} bytes is over the limit")
        if len(self._data) < HEADER.size + length:
            return None
        try:
            message = _DECODER.decode(bytes(self._data[HEADER.size : HEADER.size + length]))
        except msgspec.MsgspecError as error:
            raise ConnectionAbortedError(f"not a message: {error}") from error
        del self._data[: HEADER.size + length]
        descriptors, self._descriptors = self._descriptors, []
        return message, descriptors

    def end(self) -> None:
        """No more bytes will come. Raises OSError in the middle of a message."""
        if self._data:
            raise ConnectionResetError("the other end closed in the middle of a message")


def close(descriptors: list[int]) -> None:
    """Close descriptors that nobody wants."""
    for descriptor in descriptors:
        os.close(descriptor)
