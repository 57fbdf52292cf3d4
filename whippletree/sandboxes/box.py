"""A sandbox as its controller sees it, whichever backend is behind it; `attach` is the way in from another process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from whippletree.errors import SandboxError
from whippletree.protocols import (
    ExecResult,
    Fetched,
    NetworkPolicy,
    NetworkRefusal,
    SandboxHandle,
    SandboxSpec,
    Snapshot,
)
from whippletree.sandboxes import client, wire
from whippletree.sandboxes.backends import Backend, check
from whippletree.sandboxes.config import SandboxConfig, root_of
from whippletree.sandboxes.launching import launcher
from whippletree.sandboxes.leftovers import remove_left
from whippletree.sandboxes.network import Network
from whippletree.types import Usage

if TYPE_CHECKING:
    from whippletree.sandboxes.pods.commands import SyncPodExec

RECORD = "snapshot.json"
_ANSWER_SECONDS = 60.0
_SNAPSHOT_SECONDS = 600.0


class Box:
    """One sandbox of this machine. Make it with `create`; use it on one event loop."""

    def __init__(
        self, config: SandboxConfig, request: wire.BoxRequest, spec: SandboxSpec, gateway: tuple[str, int], isolation: str
    ) -> None:
        self.isolation = isolation
        self.handle: SandboxHandle | None = None
        self.waiting = False  # for its turn to start
        self._given_up = False
        self.gateway = gateway  # where commands inside find it; (host, port)
        self._config = config
        self._request = request
        self._spec = spec
        self._lifeline: socket.socket | None = None
        self._speaking = asyncio.Lock()  # one exchange at a time over the lifeline
        self._unanswered = False  # a snapshot was given up before the keeper said that it is done
        self._owner = 0
        self._network = Network(spec, gateway)

    async def start(self) -> SandboxHandle:
        """Boot it. Raises SandboxError with what the backend said."""
        if self._lifeline is not None or self.waiting:
            raise SandboxError(f"sandbox {self._spec.sandbox_id} was started already", "create another")
        self.waiting = True
        try:
            async with launcher().turns(self._config.starts_at_once):
                if self._given_up:
                    raise SandboxError(
                        f"sandbox {self._spec.sandbox_id} was stopped before its turn to start", "create another"
                    )
                self.waiting = False
                return await self._boot()
        finally:
            self.waiting = False

    async def _boot(self) -> SandboxHandle:
        self._lifeline = launcher().launch(self._request)
        self._lifeline.setblocking(False)
        try:
            received = await client.receive(self._lifeline, wire.Assembler(), self._request.start_seconds)
        except (OSError, TimeoutError) as error:
            await self.stop()
            cause = f"sandbox {self._spec.sandbox_id} did not start: {error or 'time is up'}"
            setting = "podman_start_seconds" if self._request.backend == "podman" else "start_seconds"
            raise SandboxError(cause, f"raise sandbox.{setting} if the machine is loaded") from error
        ready = received[0] if received is not None else None
        if received is None or not isinstance(ready, wire.Ready):
            failed = ready if isinstance(ready, wire.Failed) else None
            await self.stop()
            message = failed.message if failed else "its keeper ended"
            raise SandboxError(f"sandbox {self._spec.sandbox_id} did not start: {message}", failed.next_step if failed else "")
        if descriptors := received[1]:
            await self._network.open(descriptors)
            if self._spec.gateway_port:
                self.gateway = ("127.0.0.1", self._spec.gateway_port)
        self._owner = ready.owner
        self.handle = SandboxHandle(
            backend=self._request.backend,
            sandbox_id=self._spec.sandbox_id,
            pid=ready.pid,
            root=str(Path(self._request.root) / self._spec.sandbox_id),
            workdir=ready.workdir,
            environment=ready.environment,
            cgroups=ready.cgroups,
            limits=self._spec.limits,
        )
        return self.handle

    def _started(self) -> SandboxHandle:
        if self.handle is None or self._lifeline is None:
            raise SandboxError(f"sandbox {self._spec.sandbox_id} does not run", "start it first; a stopped one cannot be used")
        return self.handle

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
        cwd: str = "",
        output_limit: int = client.OUTPUT_LIMIT,
        user: str = "",
        on_output: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """Run a command to its end and read its output; at `timeout` seconds it and its children are killed. What it left in
        the background lives on, and `left_running` says so where that still holds the output.

        `user` is a name of the sandbox's /etc/passwd or a number. `on_output` is called on the event loop with each piece of
        output as it comes; what it raises ends the command. Raises SandboxError where the sandbox has no such user, or can be
        only one.
        """
        return await client.exec_async(
            self._started(),
            argv,
            timeout=timeout,
            environment=environment,
            cwd=cwd,
            output_limit=output_limit,
            user=user,
            on_output=on_output,
        )

    async def put(self, source: Path, target: str) -> None:
        """Copy a host file or directory inside. A directory is merged into an existing one; no file is ever replaced."""
        handle = self._started()
        try:
            descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SandboxError(f"{source}: {error.strerror}", "give a file or directory that can be read") from error
        try:
            await client.ask(handle, wire.Put(target=target), (descriptor,), _ANSWER_SECONDS)
        finally:
            os.close(descriptor)

    async def read(self, path: str, limit: int = 1_000_000) -> bytes | None:
        """At most `limit` bytes of a regular file; no component may be a symbolic link. None when it does not exist."""
        answer = await client.ask(self._started(), wire.Read(path=path, limit=limit), (), _ANSWER_SECONDS)
        return answer.data if isinstance(answer, wire.Content) else None

    async def get(self, source: str, target: Path, limit: int = 100_000_000) -> Fetched:
        """Copy a file or directory out to `target`, which must not exist; its files are this user's. Links and other special
        files are skipped and named. Raises SandboxError beyond `limit` bytes; nothing is left of a copy that failed."""
        handle = self._started()
        try:
            aside = Path(tempfile.mkdtemp(prefix=".whippletree-", dir=target.parent))
        except OSError as error:
            raise SandboxError(
                f"{target.parent}: {error.strerror}", "give a path in a directory that can be written"
            ) from error
        try:
            descriptor = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                message = wire.Get(path=source, limit=limit)
                got = await client.ask(handle, message, (descriptor,), _ANSWER_SECONDS)
            finally:
                os.close(descriptor)
            if os.path.lexists(target):
                raise SandboxError(f"{target}: File exists", "give a path that does not exist")
            (aside / Path(source).name).rename(target)
        finally:
            await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)
        assert isinstance(got, wire.Got)
        return Fetched(files=got.files, bytes=got.bytes, skipped=got.skipped)

    @property
    def refusals(self) -> Sequence[NetworkRefusal]:
        """What it tried to reach and may not: the latest 1,000, oldest first."""
        return self._network.refusals

    @property
    def refused(self) -> int:
        """How often it tried that, since it started."""
        return self._network.refused

    @property
    def proxy_environment(self) -> dict[str, str]:
        """Variables that lead commands to the proxy; {} while it leads nowhere, and where there is none."""
        return self._network.environment

    async def set_network(self, policy: NetworkPolicy) -> None:
        """Change what may be reached while it runs; what is open and no longer allowed is cut. Raises SandboxError for a list
        that is not well-formed, and where nothing here holds the network."""
        if self._started().backend == "process":
            raise SandboxError(
                "the network of a process sandbox is the host's: nothing holds it", "use a backend that isolates"
            )
        self._network.set(policy)

    async def snapshot(self, directory: Path) -> Snapshot:
        """Write its files, and its processes where that works, into `directory`, which must not exist. It goes on afterwards.

        A snapshot of processes holds what commands left in the background; it waits for running ones, up to
        `sandbox.snapshot_seconds`. Raises SandboxError, with nothing left of the snapshot.
        """
        handle = self._started()
        try:
            directory.mkdir(mode=0o700)
        except OSError as error:
            raise SandboxError(f"{directory}: {error.strerror}", "give a path that does not exist") from error
        try:
            frozen = await self._freeze(directory)
            made = Snapshot(
                directory=str(directory),
                backend=handle.backend,
                sandbox_id=handle.sandbox_id,
                owner=self._owner,
                workdir=self._request.workdir,
                time=time.time(),
                rootfs=self._spec.rootfs,
                user=self._spec.user,
                read_only=self._spec.read_only,
                environment=self._spec.environment,
                limits=self._spec.limits,
                holds=frozen.holds,
                reason=frozen.reason,
                files_bytes=frozen.files_bytes,
                processes_bytes=frozen.processes_bytes,
                frozen_seconds=frozen.frozen_seconds,
            )
            (directory / RECORD).write_bytes(msgspec.json.encode(made))
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
            raise
        return made

    async def _freeze(self, directory: Path) -> wire.Frozen:
        wait = self._config.snapshot_seconds
        message = wire.Freeze(directory=str(directory.absolute()), seconds=wait)
        async with self._speaking:
            lifeline = self._lifeline
            assert lifeline is not None
            if self._unanswered:
                raise SandboxError(
                    f"sandbox {self._spec.sandbox_id}: an earlier snapshot was given up while it was made",
                    "give the first one more time; this sandbox makes no other",
                )
            self._unanswered = True
            try:
                lifeline.send(wire.encode(message))
                received = await client.receive(lifeline, wire.Assembler(), wait + _SNAPSHOT_SECONDS)
            except (OSError, TimeoutError) as error:
                raise SandboxError(f"sandbox {self._spec.sandbox_id} made no snapshot: {error or 'time is up'}") from error
        self._unanswered = False
        if received is None:
            raise SandboxError(f"sandbox {self._spec.sandbox_id} ended during its snapshot")
        if isinstance(received[0], wire.Failed):
            raise SandboxError(f"sandbox {self._spec.sandbox_id}: {received[0].message}", received[0].next_step)
        assert isinstance(received[0], wire.Frozen)
        return received[0]

    async def usage(self) -> Usage:
        """What it uses now, and has used."""
        got = await client.ask(self._started(), wire.Measure(), (), _ANSWER_SECONDS)
        assert isinstance(got, wire.Measured)
        return Usage(
            cpu_seconds=got.cpu_seconds,
            memory_peak_bytes=got.memory_peak_bytes,
            processes=got.processes,
            disk_bytes=got.disk_bytes,
        )

    async def kill_all(self) -> None:
        """End every process that was started inside; the sandbox and its files stay."""
        await client.ask(self._started(), wire.KillAll(), (), _ANSWER_SECONDS)

    async def stop(self) -> None:
        """End everything in it and remove it. Never raises; may be called again, and before `start`."""
        self._given_up = self.waiting
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is None:
            return
        try:
            await self._network.close()
        finally:
            await self._end(lifeline)

    async def _end(self, lifeline: socket.socket) -> None:
        async with self._speaking:
            await self._say_stop(lifeline)

    async def _say_stop(self, lifeline: socket.socket) -> None:
        with lifeline, contextlib.suppress(OSError, TimeoutError):  # closing the lifeline says the same
            lifeline.send(wire.encode(wire.Stop()))
            assembler = wire.Assembler()
            while await client.receive(lifeline, assembler, self._config.stop_seconds) is not None:
                pass
            return
        folder = Path(self._request.root) / self._spec.sandbox_id
        await asyncio.to_thread(remove_left, folder, token=self._request.token)


def build(
    config: SandboxConfig,
    spec: SandboxSpec,
    backend: Backend,
    *,
    gateway: tuple[str, int],
    snapshot: Snapshot | None = None,
    processes: bool = True,
) -> Box:
    """A sandbox of that backend, not started yet; of a snapshot, with its `processes` or without. Raises SandboxError for a
    spec that cannot be."""
    check(spec, backend)
    assert backend.kind != "kubernetes"
    request = wire.BoxRequest(
        backend=backend.kind,
        sandbox_id=spec.sandbox_id,
        token=uuid.uuid4().hex,
        root=str(root_of(config)),
        workdir="/" + spec.workdir.strip("/"),
        bwrap=backend.bwrap,
        runc=backend.runc,
        criu=backend.criu,
        podman=backend.podman,
        start_seconds=config.podman_start_seconds if backend.kind == "podman" else config.start_seconds,
        rootfs=spec.rootfs,
        restored=snapshot.directory if snapshot else "",
        processes_too=processes,
        owner=snapshot.owner if snapshot else 0,
        files=spec.files,
        read_only=spec.read_only,
        environment=spec.environment,
        ports=Network(spec, gateway).ports,
        memory_mb=spec.limits.memory_mb,
        processes=spec.limits.processes,
        open_files=spec.limits.open_files,
        file_mb=spec.limits.file_mb,
        space_mb=spec.limits.space_mb or config.space_mb,
        cpus=spec.limits.cpus,
        user=spec.user,
        cgroup=config.cgroup,
    )
    return Box(config, request, spec, gateway, backend.sentence)


def attach(handle: SandboxHandle) -> client.SyncExec | SyncPodExec:
    """Blocking access to a running sandbox, from any thread of any process of this user on this machine; to a pod, of any that
    may read its kubeconfig."""
    if handle.pod is None:
        return client.SyncExec(handle)
    from whippletree.sandboxes.pods.commands import SyncPodExec

    return SyncPodExec(handle)
