"""Clients of a keeper: one connection per request, blocking (`SyncExec`, for threads) or on an event loop (`exec_async`).

Once the command has exited, what it left in the background has a short time to write on: until it has written nothing for
`QUIET_SECONDS`, and at most `LEFT_SECONDS`. Then the pipe is handed to the keeper, which reads it into nothing.

Invariants (tests/sandboxes/): output beyond the limit is drained and dropped, never held; a command ends at its time limit; a
client that is cancelled ends its command; a process that holds the output does not keep the result of a command that exited.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from whippletree.errors import SandboxError
from whippletree.protocols import ExecResult, SandboxHandle
from whippletree.sandboxes import wire
from whippletree.sandboxes.keeper import CONTROL

OUTPUT_LIMIT = 1_000_000
TIMED_OUT = 124
QUIET_SECONDS = 0.5
LEFT_SECONDS = 2.0
_KILLED = -9
_GRACE_SECONDS = 10.0
_CHUNK = 65536
_PIPE = 1 << 20  # the most that a pipe holds
OnOutput = Callable[[bytes], None]
_GONE = "it was stopped, or its controller or keeper ended; start another"


def connect(handle: SandboxHandle) -> socket.socket:
    """A connection to the keeper of a sandbox. Raises SandboxError when it is gone."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(Path(handle.root) / CONTROL))
    except OSError as error:
        connection.close()
        raise SandboxError(f"sandbox {handle.sandbox_id} cannot be reached: {error.strerror}", _GONE) from error
    return connection


class Exchange:
    """One command as its client sees it: the output so far, and how it stands. No I/O but reading what is there."""

    def __init__(
        self, handle: SandboxHandle, connection: socket.socket, output: int, limit: int, listener: OnOutput | None
    ) -> None:
        self.connection = connection
        self.output = output
        self.open = True  # the output may bring more
        self.ended = False  # the keeper's side has closed
        self.code: int | None = None
        self.timed_out = False
        self._handle = handle
        self._limit = limit
        self._listener = listener
        self._started = self._heard = time.monotonic()
        self._exited = 0.0
        self._data = bytearray()
        self._truncated = False
        self._assembler = wire.Assembler()

    @property
    def finished(self) -> bool:
        """Nothing more will come. After a kill only the keeper's end counts."""
        return self.ended or (not self.open and self.code is not None and not self.timed_out)

    def until(self, deadline: float) -> float:
        """The monotonic time at which to go: the deadline, or earlier what the leftovers of an exited command get."""
        if self.code is None or self.timed_out:
            return deadline
        return min(deadline, self._exited + LEFT_SECONDS, max(self._exited, self._heard) + QUIET_SECONDS)

    @property
    def left_running(self) -> bool:
        """The command has exited, and something that it started holds its output."""
        return self.code is not None and self.open and not self.ended and not self.timed_out

    def read_output(self) -> bool:
        """Take what the command wrote; False when there is nothing now."""
        try:
            data = os.read(self.output, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.open = False
            return False
        self._heard = time.monotonic()
        room = self._limit - len(self._data)
        self._data += data[:room]
        self._truncated = self._truncated or len(data) > room
        if self._listener is not None and room > 0:
            self._listener(data[:room])
        return True

    def read_messages(self) -> None:
        """Take what the keeper says. Raises SandboxError when it refused."""
        try:
            data, _ = wire.receive_some(self.connection)
        except (BlockingIOError, ConnectionResetError) as error:
            self.ended = self.ended or isinstance(error, ConnectionResetError)
            return
        if not data:
            self.ended = True
            return
        self._assembler.feed(data, [])
        while (received := self._assembler.take()) is not None:
            message = received[0]
            if isinstance(message, wire.Exited):
                self.code, self._exited = message.code, time.monotonic()
            elif isinstance(message, wire.Failed):
                raise SandboxError(f"sandbox {self._handle.sandbox_id}: {message.message}", message.next_step or _GONE)

    def drain(self) -> None:
        """Take what is in the pipe now: all that the command itself wrote, once it has ended."""
        for _ in range(_PIPE // _CHUNK):
            if not self.open or not self.read_output():
                return

    def tell(self, *, kill: bool) -> None:
        """Say how it ends; whoever holds the output still gets another reader."""
        with contextlib.suppress(OSError):  # its end is what was wanted
            wire.Channel(self.connection).send(wire.Finish(kill=kill), (self.output,) if self.left_running else ())

    def result(self) -> ExecResult:
        """What came of it. `exit_code` is negative for a signal, and 124 at the time limit.

        Raises SandboxError when the command ended without a word because the sandbox did.
        """
        if self.code is None and not self.timed_out:
            connect(self._handle).close()
        code = TIMED_OUT if self.timed_out else self.code if self.code is not None else _KILLED
        return ExecResult(
            exit_code=code,
            output=self._data.decode("utf-8", errors="replace"),
            seconds=time.monotonic() - self._started,
            timed_out=self.timed_out,
            truncated=self._truncated,
            left_running=self.left_running,
        )


@contextlib.contextmanager
def exchange(handle: SandboxHandle, message: wire.Exec, limit: int, listener: OnOutput | None = None) -> Iterator[Exchange]:
    """Start a command; whatever is left of it when the block ends is killed."""
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(connect(handle))
        output, inside = os.pipe()
        stack.callback(os.close, output)
        os.set_blocking(output, False)
        try:
            wire.Channel(connection).send(message, (inside,))
        except OSError as error:
            raise SandboxError(f"sandbox {handle.sandbox_id} is gone: {error.strerror}", _GONE) from error
        finally:
            os.close(inside)
        connection.setblocking(False)
        yield Exchange(handle, connection, output, limit, listener)


def _message(
    handle: SandboxHandle, argv: Sequence[str], environment: Mapping[str, str] | None, cwd: str, user: str
) -> wire.Exec:
    names = dict(handle.environment) | dict(environment or {})
    try:
        words = tuple(os.fsencode(word) for word in argv)
        flat = b"".join((*words, cwd.encode(), user.encode(), *(f"{name}={value}".encode() for name, value in names.items())))
    except UnicodeEncodeError as error:
        raise SandboxError(f"a command cannot be passed on: {error}", "use text that can be encoded") from error
    if not words or b"\0" in flat:
        raise SandboxError("a command cannot be passed on: it is empty, or holds a null byte", "mend the command")
    return wire.Exec(argv=words, cwd=cwd or handle.workdir, environment=names, user=user)


class SyncExec:
    """Runs commands in a sandbox from any thread of any process of this user on this machine."""

    def __init__(self, handle: SandboxHandle) -> None:
        self.handle = handle

    def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
        cwd: str = "",
        output_limit: int = OUTPUT_LIMIT,
        user: str = "",
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run a command to its end and read its output; at `timeout` seconds it and its children are killed. What it left in
        the background lives on, and `left_running` says so where that still holds the output.

        `on_output` is called on this thread; what it raises ends the command. Raises SandboxError when the sandbox is gone, has
        no such user, or a kill does not take.
        """
        message = _message(self.handle, argv, environment, cwd, user)
        with exchange(self.handle, message, output_limit, on_output) as run:
            if not _drive(run, time.monotonic() + timeout):
                run.timed_out = True
                run.tell(kill=True)
                if not _drive(run, time.monotonic() + _GRACE_SECONDS):
                    raise SandboxError(f"sandbox {self.handle.sandbox_id}: a command outlived its kill", "stop the sandbox")
            run.drain()
            if not run.timed_out:
                run.tell(kill=False)
            return run.result()


def _drive(run: Exchange, deadline: float) -> bool:
    """Read until it is finished; False when it still ran at the deadline."""
    poll = select.poll()
    poll.register(run.connection, select.POLLIN)
    poll.register(run.output, select.POLLIN)
    while not run.finished:
        left = run.until(deadline) - time.monotonic()
        if left <= 0:
            return run.left_running
        ready = {descriptor for descriptor, _ in poll.poll(left * 1000 + 1)}
        if run.output in ready:
            run.read_output()
            if not run.open:
                poll.unregister(run.output)
        if run.connection.fileno() in ready:
            run.read_messages()
    return True


async def exec_async(
    handle: SandboxHandle,
    argv: Sequence[str],
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
    cwd: str = "",
    output_limit: int = OUTPUT_LIMIT,
    user: str = "",
    on_output: OnOutput | None = None,
) -> ExecResult:
    """As SyncExec.exec, on the running loop. Cancelling it kills the command."""
    with exchange(handle, _message(handle, argv, environment, cwd, user), output_limit, on_output) as run:
        if not await _watch(run, timeout):
            run.timed_out = True
            run.tell(kill=True)
            if not await _watch(run, _GRACE_SECONDS):
                raise SandboxError(f"sandbox {handle.sandbox_id}: a command outlived its kill", "stop the sandbox")
        run.drain()
        if not run.timed_out:
            run.tell(kill=False)
        return run.result()


async def _watch(run: Exchange, timeout: float) -> bool:
    """As _drive, on the running loop."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bool] = loop.create_future()
    connection = run.connection.fileno()
    deadline = time.monotonic() + timeout
    timer: asyncio.TimerHandle | None = None

    def on_output() -> None:
        try:
            run.read_output()
        except Exception as error:  # noqa: BLE001  (what the caller's `on_output` raised; it is raised there again)
            loop.remove_reader(run.output)
            if not done.done():
                done.set_exception(error)
            return
        if not run.open:
            loop.remove_reader(run.output)
        settle()

    def on_message() -> None:
        try:
            run.read_messages()
        except (SandboxError, OSError) as error:
            loop.remove_reader(connection)
            if not done.done():
                done.set_exception(error)
            return
        if run.ended:
            loop.remove_reader(connection)
        settle()

    def settle() -> None:
        nonlocal timer
        if timer is not None:
            timer.cancel()
        left = run.until(deadline) - time.monotonic()
        if not run.finished and left > 0:
            timer = loop.call_later(left, settle)
        elif not done.done():
            done.set_result(run.finished or run.left_running)

    settle()
    if run.open:
        loop.add_reader(run.output, on_output)
    loop.add_reader(connection, on_message)
    try:
        return await done
    finally:
        if timer is not None:
            timer.cancel()
        loop.remove_reader(connection)
        loop.remove_reader(run.output)


async def receive(
    connection: socket.socket, assembler: wire.Assembler, seconds: float
) -> tuple[wire.Message, list[int]] | None:
    """One message from a non-blocking connection; None at its end. Raises TimeoutError, OSError."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[wire.Message, list[int]] | None] = loop.create_future()

    def on_readable() -> None:
        try:
            data, descriptors = wire.receive_some(connection)
            if data:
                assembler.feed(data, descriptors)
                received = assembler.take()
                if received is None:
                    return
            else:
                assembler.end()
                received = None
        except BlockingIOError:
            return
        except OSError as error:
            if not done.done():
                done.set_exception(error)
            return
        if not done.done():
            done.set_result(received)

    loop.add_reader(connection.fileno(), on_readable)
    try:
        return await asyncio.wait_for(done, seconds)
    finally:
        loop.remove_reader(connection.fileno())


async def ask(handle: SandboxHandle, message: wire.Message, descriptors: tuple[int, ...], seconds: float) -> wire.Message:
    """One request with one answer. Raises SandboxError when it was refused, or when no answer comes in time."""
    with connect(handle) as connection:
        try:
            wire.Channel(connection).send(message, descriptors)
            connection.setblocking(False)
            received = await receive(connection, wire.Assembler(), seconds)
        except (OSError, TimeoutError) as error:
            raise SandboxError(f"sandbox {handle.sandbox_id} does not answer: {error or 'time is up'}", _GONE) from error
    if received is None:
        raise SandboxError(f"sandbox {handle.sandbox_id} ended before its answer", _GONE)
    if isinstance(received[0], wire.Failed):
        raise SandboxError(f"sandbox {handle.sandbox_id}: {received[0].message}", received[0].next_step)
    return received[0]
