"""Running a command in a pod, to an outcome that is known or said to be unknown.

    start ──► the end comes over the connection ───────────────────────────────► result
      │
      └─ the connection is lost ─► follow, on a new one ─┬─ the rest, the code ─► result
                                        ▲       │        └─ it never began ─────► start, once more
                                        └─ lost ┘
    at the time limit: kill, on a connection of its own ─► what came until then ─► result, timed out
    where none of this gets through within its limit: SandboxError, outcome unknown

Invariants (tests/kubernetes/test_pod_sandbox.py, tests/cases/test_cases_pods.py):
- no call waits longer than its time limit and the limits of what follows it, whatever the network does;
- a command is started once, and its output comes once and in order, over however many connections;
- a code that is returned is the command's; one that nobody knows is an error.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

from whippletree.errors import ClusterError, SandboxError
from whippletree.kubernetes.access import Access, open_access
from whippletree.kubernetes.channels import CommandEnd, Container
from whippletree.protocols import ExecResult, PodAddress, SandboxHandle
from whippletree.sandboxes.client import OUTPUT_LIMIT, TIMED_OUT, OnOutput
from whippletree.sandboxes.pods import scripts
from whippletree.types import Struct

log = logging.getLogger(__name__)

_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}|[0-9]{1,10}", re.ASCII)
_SIGNALS = 31
_KILL_SECONDS = 30.0
_REST_SECONDS = 5.0  # for the output of a command that was killed
_PAUSES = (0.2, 0.5, 1.0, 2.0)
_TRANSIENT = (0, 401, 408, 429)
_WAY = "check the API server, the pod's node and the way to them"
_GONE = "it was stopped, or its pod ended; start another"


class _Place(Struct):
    """What access needs of an address."""

    kubeconfig: str
    context: str
    namespace: str
    requests_at_once: int = 1
    request_seconds: float = 30.0
    retry_seconds: float = 30.0
    stall_seconds: float = 30.0


def access_of(address: PodAddress) -> Access:
    """Credentials for a pod. Raises ConfigurationError."""
    return open_access(_Place(kubeconfig=address.kubeconfig, context=address.context, namespace=address.namespace))


def container_of(address: PodAddress, access: Access) -> Container:
    """The container where its commands run."""
    return Container(
        access,
        namespace=address.namespace,
        pod=address.pod,
        container=address.container,
        request_seconds=address.request_seconds,
        ping_seconds=address.ping_seconds,
    )


def shell(script: str, *arguments: str) -> tuple[str, ...]:
    """A script of ours as a command."""
    return ("/bin/sh", "-c", script, "whippletree", *arguments)


def read_by_shell(script: bytes) -> tuple[tuple[str, ...], Iterable[bytes]]:
    """A script as a command, and the input that it comes over."""
    return ("/bin/sh", "-c", scripts.READER, str(len(script))), (script,)


class _Output:
    """What came of a command's output. `received` counts what is in the pod's own copy too."""

    def __init__(self, limit: int, listener: OnOutput | None) -> None:
        self.received = 0
        self.data = bytearray()
        self.truncated = False
        self._limit = limit
        self._listener = listener

    def take(self, data: bytes) -> None:
        self.received += len(data)
        room = self._limit - len(self.data)
        self.data += data[:room]
        self.truncated = self.truncated or len(data) > room
        if self._listener is not None and room > 0:
            self._listener(data[:room])


class PodExec:
    """Runs commands in one pod, on the event loop that its container belongs to."""

    def __init__(self, container: Container, handle: SandboxHandle) -> None:
        assert handle.pod is not None
        self._container = container
        self._handle = handle
        self._address = handle.pod
        self._done: list[str] = []  # commands whose state in the pod is not wanted any more

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
        cwd: str = "",
        output_limit: int = OUTPUT_LIMIT,
        user: str = "",
        on_output: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """Run a command to its end and that of its output; at `timeout` seconds it and its children are killed.

        Raises SandboxError when the pod is gone, has no such user, or when what became of the command cannot be found out.
        """
        words, names = _checked(argv, cwd, user, dict(self._handle.environment) | dict(environment or {}))
        if user:
            names = {name: value for name, value in names.items() if not self._is_home(name, value)}
        forget, self._done = self._done, []

        def script(token: str) -> bytes:
            return scripts.command(
                token,
                words,
                environment=names,
                cwd=cwd or self._handle.workdir,
                user=user,
                own=(self._address.user, self._address.user_name),
                limits=self._handle.limits,
                keep=output_limit,
                done=forget,
            )

        output = _Output(output_limit, on_output)
        run = _Command(self._container, self._address.lost_seconds, output, script, f"sandbox {self._handle.sandbox_id}")
        began = time.monotonic()
        code, timed_out = await _to_its_end(run, timeout)
        self._done.append(run.token)
        return ExecResult(
            exit_code=code,
            output=output.data.decode("utf-8", errors="replace"),
            seconds=time.monotonic() - began,
            timed_out=timed_out,
            truncated=output.truncated,
        )

    def _is_home(self, name: str, value: str) -> bool:
        """A variable that is the sandbox's own user's, and not the client's."""
        return name in ("HOME", "USER") and self._handle.environment.get(name) == value


def _checked(argv: Sequence[str], cwd: str, user: str, environment: dict[str, str]) -> tuple[list[bytes], dict[str, str]]:
    """Raises SandboxError for what cannot be passed on, and for what is no user anywhere."""
    try:
        words = [os.fsencode(word) for word in argv]
        flat = b"".join(
            (*words, cwd.encode(), user.encode(), *(f"{name}={value}".encode() for name, value in environment.items()))
        )
    except UnicodeEncodeError as error:
        raise SandboxError(f"a command cannot be passed on: {error}", "use text that can be encoded") from error
    if not words or b"\0" in flat:
        raise SandboxError("a command cannot be passed on: it is empty, or holds a null byte", "mend the command")
    if user and not _USER.fullmatch(user):
        raise SandboxError(f"the sandbox has no user {user!r}", "give a name of its /etc/passwd, or a number")
    if user.isdigit() and int(user) >= (1 << 32) - 1:
        raise SandboxError(f"the sandbox has no user {user!r}", "numbers of users end at 4294967294")
    return words, environment


async def _to_its_end(run: _Command, timeout: float) -> tuple[int, bool]:
    """(exit code, whether it was killed at its time limit). Whatever else ends this ends the command too."""
    work = asyncio.create_task(run.to_its_end())
    try:
        await asyncio.wait([work], timeout=timeout)
        if work.done():
            return work.result(), False
        await run.kill()
        await asyncio.wait([work], timeout=_REST_SECONDS)
        if work.done() and (error := work.exception()) is not None and not isinstance(error, SandboxError):
            raise error
        return TIMED_OUT, True
    except SandboxError:
        raise
    except BaseException:  # the caller was cancelled, or its listener raised
        await _finish(run.kill())
        raise
    finally:
        work.cancel()
        await asyncio.wait([work])


async def _finish(work: Coroutine[None, None, None]) -> None:
    """Await it to its end, however often the caller is cancelled; what a kill could not end, the sandbox's stop does."""
    task = asyncio.create_task(work)
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("a command that was given up may still run: %s", error)


class _Command:
    """One command under way. `token` names it in the pod."""

    def __init__(
        self, container: Container, lost_seconds: float, output: _Output, script: Callable[[str], bytes], what: str
    ) -> None:
        self.token = uuid.uuid4().hex
        self._container = container
        self._lost_seconds = lost_seconds
        self._output = output
        self._script = script
        self._what = what
        self._killed = False

    async def to_its_end(self) -> int:
        """Its exit code. Raises SandboxError; what the listener raises."""
        until = time.monotonic() + self._lost_seconds
        while True:
            code = await self._start()
            if code is None:
                code = await self._follow()
            if code is not None:
                return code
            if self._killed or time.monotonic() > until:
                raise SandboxError(f"{self._what}: a command could not be started: the way to it is lost", _WAY)
            self.token = uuid.uuid4().hex

    async def _start(self) -> int | None:
        """Start it and stay with it. None when the connection is lost."""
        argv, stdin = read_by_shell(self._script(self.token))
        try:
            end = await self._container.run(argv, stdin=stdin, on_output=self._output.take)
        except ClusterError as error:
            self._raise_unless_lost(error)
            return None
        return None if end.code is None else self._code(end)

    async def _follow(self) -> int | None:
        """Find it again, and stay with it. None when it never began, and never will."""
        until = time.monotonic() + self._lost_seconds
        tries = 0
        while True:
            began = time.monotonic()
            argv = shell(scripts.FOLLOW, scripts.directory(self.token), str(self._output.received))
            try:
                end = await self._container.run(argv, on_output=self._output.take)
            except ClusterError as error:
                self._raise_unless_lost(error)
                why = str(error)
            else:
                if end.code is not None:
                    return None if end.errors.strip() == scripts.NEVER else self._code(end)
                why = end.message
            if time.monotonic() - began > self._lost_seconds:
                until = time.monotonic() + self._lost_seconds  # it was found and followed for long, and lost again
            if time.monotonic() > until:
                raise SandboxError(f"{self._what}: the outcome of a command is unknown: {why}", _WAY)
            await asyncio.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
            tries += 1

    async def kill(self) -> None:
        """End it with all that it started. Raises SandboxError when that cannot be had."""
        self._killed = True
        until = time.monotonic() + _KILL_SECONDS
        argv = shell(scripts.KILL, scripts.directory(self.token), f"{scripts.MARK}={self.token}")
        for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + max(1.0, until - time.monotonic())):
                    end = await self._container.run(argv, on_output=_drop)
            except (ClusterError, TimeoutError) as error:
                self._raise_unless_lost(error)
                why = str(error) or "no answer in time"
            else:
                if end.code == 0:
                    return
                if end.code is not None:
                    raise SandboxError(f"{self._what}: a command outlived its kill", "stop the sandbox")
                why = end.message
            if time.monotonic() > until:
                raise SandboxError(f"{self._what}: the outcome of a command is unknown: it cannot be killed: {why}", _WAY)
            await asyncio.sleep(pause)

    def _code(self, end: CommandEnd) -> int:
        assert end.code is not None
        if end.code == scripts.FAILED and end.errors:
            raise SandboxError(f"{self._what}: {end.errors.strip()}", "")
        return -(end.code - 128) if 128 < end.code <= 128 + _SIGNALS else end.code

    def _raise_unless_lost(self, error: Exception) -> None:
        if isinstance(error, ClusterError) and 400 <= error.status < 500 and error.status not in _TRANSIENT:
            if error.status == 404:
                raise SandboxError(f"{self._what} cannot be reached: {error.cause}", _GONE) from error
            raise SandboxError(f"{self._what}: {error.cause}", error.next_step) from error


def _drop(data: bytes) -> None:
    """Output that nobody wants."""


class SyncPodExec:
    """Runs commands in a pod from any thread of any process that may read its kubeconfig. Each has a connection of its own."""

    def __init__(self, handle: SandboxHandle) -> None:
        """Raises ConfigurationError for credentials that cannot be read."""
        if handle.pod is None:
            raise SandboxError(f"sandbox {handle.sandbox_id} is no pod")
        self.handle = handle
        self._access = access_of(handle.pod)
        self._address = handle.pod

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
        """As PodExec.exec, blocking. `on_output` is called on this thread, or on a helper where this one has an event loop."""

        async def run() -> ExecResult:
            async with container_of(self._address, self._access) as container:
                return await PodExec(container, self.handle).exec(
                    argv,
                    timeout=timeout,
                    environment=environment,
                    cwd=cwd,
                    output_limit=output_limit,
                    user=user,
                    on_output=on_output,
                )

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(run())
        with concurrent.futures.ThreadPoolExecutor(1) as aside:
            return aside.submit(lambda: asyncio.run(run())).result()
