"""Between the agent's end and the verdict: collect hooks are run, and the listed paths are copied out.

    hooks (commands inside) ─► each path: tar inside ─► checked here ─► files below a directory of the attempt, manifest.json
                                                           └─► into the separate verifier's sandbox, at the same paths

Nothing that comes out is trusted: only regular files and directories are taken, below the place that is meant for them.

Invariants (tests/tasks/test_artifacts.py):
- no file is written outside the artifacts directory, whatever the archive holds; links and devices are left out and named;
- a path that is not there, a hook that fails and an archive that is too large are in the manifest, and stop nothing;
- a separate verifier's sandbox gets these files and no others of the agent's.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import posixpath
import tarfile
from collections.abc import Sequence
from pathlib import Path

from whippletree.files import write_json
from whippletree.protocols import Sandbox
from whippletree.tasks.task import Artifact, CollectHook, Step, Task
from whippletree.types import Struct

LIMIT = 64 << 20  # bytes of one artifact's archive
COPY_SECONDS = 60.0  # limit for packing one artifact

# $1: the path, relative to the root; further arguments go to tar. Where tar and base64 are looked for is not the agent's to
# choose; images have them in one or the other.
_PACK = """PATH=/usr/bin:/bin; root=${PWD%/}; path=$1; shift
[ -e "$root/$path" ] || exit 3
cd "$root/$(dirname -- "$path")" || exit 3
tar -cf - "$@" -- "$(basename -- "$path")" 2>/dev/null | base64 -w0"""


class Collected(Struct):
    """One artifact in the manifest. `problem`: why it, or a part of it, is not there ("" for none). `path`: below the
    artifacts directory. `bytes`: of its files.

    Example: Collected(source="/app/report", path="app/report", files=2, bytes=1024)
    """

    source: str
    path: str
    files: int = 0
    bytes: int = 0
    problem: str = ""


class Hooked(Struct):
    """One collect hook in the manifest. Example: Hooked(command="git diff > /logs/artifacts/p", exit_code=0, output="")"""

    command: str
    exit_code: int
    output: str = ""
    timed_out: bool = False


class Manifest(Struct):
    """What came of a step's collection. Example: Manifest(step="", artifacts=(Collected(source="/app/a", path="app/a"),))"""

    step: str
    artifacts: tuple[Collected, ...] = ()
    hooks: tuple[Hooked, ...] = ()


async def collect(task: Task, step: Step, sandbox: Sandbox, directory: Path) -> Manifest:
    """Run the step's hooks, then copy its artifacts into `directory`, with manifest.json. The agent's processes must have
    ended. Raises SandboxError when the sandbox fails."""
    hooks = [await _hook(hook, sandbox) for hook in step.judging.collect]
    found = [await _copy(artifact, sandbox, directory) for artifact in step.artifacts]
    kept = [entry for entry in found if entry is not None]
    manifest = Manifest(step=step.name, artifacts=tuple(kept), hooks=tuple(hooks))
    if kept or hooks:
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(write_json, directory / "manifest.json", manifest)
    return manifest


async def hand_over(manifest: Manifest, sandbox: Sandbox, directory: Path) -> None:
    """Put what was collected into another sandbox, at the paths that it came from. Raises SandboxError."""
    for entry in manifest.artifacts:
        if (directory / entry.path).exists():
            await sandbox.put(directory / entry.path, entry.source)


async def _hook(hook: CollectHook, sandbox: Sandbox) -> Hooked:
    done = await sandbox.exec(["/bin/sh", "-c", hook.command], timeout=hook.timeout, user=hook.user)
    return Hooked(command=hook.command, exit_code=done.exit_code, output=done.output[-1_000:], timed_out=done.timed_out)


async def _copy(artifact: Artifact, sandbox: Sandbox, directory: Path) -> Collected | None:
    """One artifact; None for the conventional one where it is not there."""
    argv = ["/bin/sh", "-c", _PACK, "pack", artifact.source.lstrip("/"), *_excluded(artifact.exclude)]
    done = await sandbox.exec(argv, timeout=COPY_SECONDS, cwd="/", output_limit=LIMIT * 4 // 3 + 4)
    entry = Collected(source=artifact.source, path=artifact.destination)
    if done.exit_code == 3:
        return None if artifact.source == "/logs/artifacts" else _problem(entry, "it is not there")
    if done.timed_out or done.truncated:
        size = f"more than {LIMIT} bytes" if done.truncated else f"not packed within {COPY_SECONDS:g} s"
        return _problem(entry, f"it is {size}")
    return await asyncio.to_thread(_unpack, entry, done.output, directory)


def _excluded(patterns: Sequence[str]) -> list[str]:
    return [f"--exclude={pattern}" for pattern in patterns]


def _problem(entry: Collected, problem: str) -> Collected:
    return Collected(source=entry.source, path=entry.path, files=entry.files, bytes=entry.bytes, problem=problem)


def _unpack(entry: Collected, text: str, directory: Path) -> Collected:
    """Write the archive's regular files below directory/path; the archive's first name is the artifact itself."""
    target, files, size, odd = directory / entry.path, 0, 0, list[str]()
    name = posixpath.basename(entry.source)
    try:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(text, validate=True))) as archive:
            for member in archive:
                inside = _inside(member.name, name)
                if inside is None or not (member.isfile() or member.isdir()):
                    odd.append(member.name)
                elif member.isdir():
                    (target / inside).mkdir(parents=True, exist_ok=True)
                else:
                    files, size = files + 1, size + _write(archive, member, target / inside)
    except (tarfile.TarError, binascii.Error, ValueError) as error:
        return _problem(entry, f"it could not be packed: {error}")
    except OSError as error:  # two names that only this file system holds to be one, a name that is too long
        odd.append(str(error))
    problem = f"left out: {', '.join(odd[:5])}{' and more' if len(odd) > 5 else ''}" if odd else ""
    return Collected(source=entry.source, path=entry.path, files=files, bytes=size, problem=problem)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> int:
    source = archive.extractfile(member)
    data = source.read() if source is not None else b""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o755 if member.mode & 0o100 else 0o644)
    return len(data)


def _inside(member: str, name: str) -> str | None:
    """The part of an archive's name below the artifact; None for one that is not below it."""
    parts = [part for part in member.split("/") if part not in ("", ".")]
    if not parts or parts[0] != name or ".." in parts:
        return None
    return "/".join(parts[1:])
