"""Scripts of ours in a pod, with an answer; and snapshots, which are made of them: the files of a pod as a tar archive.

Invariants (tests/kubernetes/test_pod_sandbox.py): a pod stands still while its files are copied and goes on afterwards, also
when the copy fails; nothing is left of a snapshot that failed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from whippletree.errors import ClusterError, SandboxError
from whippletree.kubernetes.channels import CommandEnd, Container
from whippletree.protocols import SandboxHandle, SandboxSpec, Snapshot
from whippletree.sandboxes.box import RECORD
from whippletree.sandboxes.checkpoint import ARCHIVE
from whippletree.sandboxes.pods import scripts
from whippletree.sandboxes.pods.commands import shell

COPY_SECONDS = 600.0
_ANSWER_SECONDS = 60.0
_CHUNK = 1 << 20
_REASON = "the API of Kubernetes has no checkpoint of a pod's processes that can be restored"


class Scripts:
    """Runs scripts of ours in a container that is there once its pod runs. `what` names the sandbox in errors."""

    def __init__(self, what: str) -> None:
        self.container: Container | None = None
        self._what = what

    async def ask(
        self,
        command: tuple[Sequence[str], Iterable[bytes] | None],
        *,
        seconds: float = _ANSWER_SECONDS,
        take: Callable[[bytes], None] | None = None,
        fine: tuple[int, ...] = (0,),
    ) -> bytes:
        """What a script of ours says. Raises SandboxError when it ends with another code than is `fine`."""
        assert self.container is not None
        said = bytearray()
        argv, stdin = command
        try:
            async with asyncio.timeout(seconds):
                end: CommandEnd = await self.container.run(argv, stdin=stdin, on_output=take or said.extend)
        except TimeoutError as error:
            raise SandboxError(f"{self._what} does not answer within {seconds:g} s", "look at its pod") from error
        except ClusterError as error:
            cause = "cannot be reached" if error.status == 404 else "does not answer"
            raise SandboxError(f"{self._what} {cause}: {error.cause}", error.next_step) from error
        if end.code is None or end.code not in fine:
            words = end.errors.strip() or end.message or f"ended with {end.code}"
            raise SandboxError(words if words == scripts.NONE else f"{self._what}: {words}")
        return bytes(said)


async def save(
    scripts_of: Scripts, spec: SandboxSpec, handle: SandboxHandle, places: Sequence[str], directory: Path
) -> Snapshot:
    """Write the files below `places` into `directory`, which must not exist. Raises SandboxError."""
    try:
        directory.mkdir(mode=0o700)
    except OSError as error:
        raise SandboxError(f"{directory}: {error.strerror}", "give a path that does not exist") from error
    began = time.monotonic()
    try:
        await _copy(scripts_of, places, directory / ARCHIVE)
        assert handle.pod is not None
        made = Snapshot(
            directory=str(directory),
            backend="kubernetes",
            sandbox_id=spec.sandbox_id,
            owner=handle.pod.user,
            workdir=handle.workdir,
            time=time.time(),
            read_only=spec.read_only,
            holds="files",
            reason=_REASON,
            files_bytes=(directory / ARCHIVE).stat().st_size,
            processes_bytes=0,
            frozen_seconds=time.monotonic() - began,
        )
        (directory / RECORD).write_bytes(msgspec.json.encode(made))
    except BaseException:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
        raise
    return made


async def _copy(scripts_of: Scripts, places: Sequence[str], archive: Path) -> None:
    command = shell(scripts.SAVE, *(place[1:] for place in places))
    with archive.open("xb") as file:

        def take(data: bytes) -> None:
            file.write(data)

        try:
            await scripts_of.ask((command, None), seconds=COPY_SECONDS, take=take, fine=(0, 1))
        except BaseException:
            await asyncio.shield(scripts_of.ask((shell(scripts.GO_ON), None)))
            raise


async def unpack(scripts_of: Scripts, directory: Path) -> None:
    """Put the files of a snapshot into a fresh pod. Raises SandboxError."""
    try:
        with (directory / ARCHIVE).open("rb") as file:
            data = iter(lambda: file.read(_CHUNK), b"")
            size = os.fstat(file.fileno()).st_size
            await scripts_of.ask((shell(scripts.RESTORE, str(size)), data), seconds=COPY_SECONDS)
    except OSError as error:
        raise SandboxError(f"{directory}: the snapshot cannot be read: {error.strerror}") from error
