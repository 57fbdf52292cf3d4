"""A cgroup per sandbox for memory, processes and CPU time, version 1 or 2, where this process may make one.

Invariants (tests/sandboxes/test_sandbox_cgroups.py): where no cgroup can be made the reason is told and nothing is left; a
removed sandbox's cgroups are gone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")


PREFIX = "whippletree-"
INNER = "box"
_CONTROLLERS = {"memory", "pids", "cpu"}
_PERIOD = 100_000  # microseconds in which a sandbox may use its share of CPU time
_LEAST = 1_000  # microseconds: the kernel takes no smaller share


class CgroupError(Exception):
    """No cgroup can be made; the text says why."""


def name_of(root: str, sandbox_id: str) -> str:
    """Name of a sandbox's cgroup: unique by folder and id."""
    return f"{PREFIX}{zlib.crc32(root.encode()):08x}-{sandbox_id}"


@functools.cache
def hierarchies() -> Mapping[str, Path]:
    """Mount point of the hierarchy that has each controller: {"memory": ..., "cpu": ...}; version 2 under all names. It is
    looked up once."""
    found: dict[str, Path] = {}
    for line in _MOUNTS.read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        point = Path(before.split(" ")[4])
        if kind == "cgroup":
            for name in _CONTROLLERS & set(options.split(" ")[-1].split(",")):
                found[name] = point
        elif kind == "cgroup2":
            for name in _CONTROLLERS & set(_read(point / "cgroup.controllers").split()):
                found.setdefault(name, point)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _own(controller: str, version2: bool) -> str:
    """Path of this process's own cgroup in a hierarchy."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if (version2 and not controllers) or controller in controllers.split(","):
            return path
    return "/"


def directories_of(name: str, parent: str) -> tuple[str, ...]:
    """Directories that `create` may make for a cgroup called `name`, known before any is there."""
    return tuple(dict.fromkeys(str(_directory(controller, name, parent)) for controller in sorted(hierarchies())))


def _directory(controller: str, name: str, parent: str) -> Path:
    point = hierarchies()[controller]
    return point / (parent or _own(controller, _is_version2(point))).strip("/") / name


def _is_version2(point: Path) -> bool:
    return (point / "cgroup.controllers").exists()


def create(name: str, parent: str, *, memory_mb: int, processes: int, cpus: float = 0.0) -> tuple[str, ...]:
    """Make cgroups called `name` with these limits; their directories. Raises CgroupError, with nothing left behind."""
    made: list[str] = []
    try:
        quota = max(int(cpus * _PERIOD), _LEAST) if cpus else 0
        for controller, limit in (("memory", memory_mb << 20), ("pids", processes), ("cpu", quota)):
            if not limit:
                continue
            if controller not in hierarchies():
                raise CgroupError(f"no {controller} controller is mounted")
            directory = _directory(controller, name, parent)
            if str(directory) not in made:
                directory.mkdir()
                made.append(str(directory))
            _limit(directory, controller, limit, _is_version2(hierarchies()[controller]))
    except OSError as error:
        remove(tuple(made), seconds=1.0)
        raise CgroupError(f"{error.strerror}: {error.filename}") from error
    except CgroupError:
        remove(tuple(made), seconds=1.0)
        raise
    return tuple(made)


def inner_path(name: str, parent: str) -> str:
    """Path, in every hierarchy, of the cgroup in which another program starts a sandbox of that name."""
    return f"/{(parent or _own('pids', False)).strip('/')}/{name}/{INNER}".replace("//", "/")


def every(path: str) -> tuple[str, ...]:
    """Directories that a cgroup of that path may have, in any hierarchy; the inner ones first."""
    points = [line.split(" ")[4] for line in _MOUNTS.read_text(encoding="utf-8").splitlines() if " - cgroup" in line]
    inner = tuple(f"{point}{path}" for point in points)
    return inner + tuple(os.path.dirname(directory) for directory in inner)  # noqa: PTH120


def _freezer(path: str) -> Path:
    """The cgroup of that path whose processes are frozen together."""
    inner = [directory for directory in every(path) if directory.endswith(f"/{INNER}")]
    return Path(next((directory for directory in inner if "/freezer/" in directory), inner[0]))


def gather(path: str, pids: Callable[[], list[int]]) -> None:
    """Move processes into the cgroup at `path` that freezes them, until all that `pids` gives are in it. Raises OSError."""
    target = _freezer(path) / "cgroup.procs"
    while missing := {str(pid) for pid in pids()} - set(_read(target).split()):
        for pid in missing:
            with contextlib.suppress(ProcessLookupError):
                target.write_text(pid, encoding="ascii")


def take_over(path: str, directories: tuple[str, ...]) -> None:
    """Move all processes of the cgroup at `path` into these, until none is left to move. Raises OSError."""
    source = _freezer(path)
    moved: set[str] = set()
    while fresh := set(_read(source / "cgroup.procs").split()) - moved:
        for pid in fresh:
            for directory in directories:
                with contextlib.suppress(ProcessLookupError):
                    move(int(pid), (directory,))
        moved |= fresh


def cpu_seconds(directories: tuple[str, ...]) -> float | None:
    """CPU time of all that ever ran in these cgroups; None where none of them counts it (version 1 would take another one)."""
    for directory in directories:
        fields = dict(line.split() for line in _read(Path(directory) / "cpu.stat").splitlines() if len(line.split()) == 2)
        if "usage_usec" in fields:
            return int(fields["usage_usec"]) / 1e6
    return None


def memory_peak(directories: tuple[str, ...]) -> int | None:
    """The most bytes that these cgroups ever held; None where none of them counts it."""
    for directory in directories:
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            if text := _read(Path(directory) / name):
                return int(text)
    return None


def _limit(directory: Path, controller: str, limit: int, version2: bool) -> None:
    names = {
        "memory": "memory.max" if version2 else "memory.limit_in_bytes",
        "pids": "pids.max",
        "cpu": "cpu.max" if version2 else "cpu.cfs_quota_us",
    }
    if controller == "cpu" and not version2:
        (directory / "cpu.cfs_period_us").write_text(str(_PERIOD), encoding="ascii")
    text = f"{limit} {_PERIOD}" if controller == "cpu" and version2 else str(limit)
    (directory / names[controller]).write_text(text, encoding="ascii")
    swap = directory / ("memory.swap.max" if version2 else "memory.memsw.limit_in_bytes")
    if controller == "memory" and swap.exists():
        with contextlib.suppress(OSError):  # swap accounting is optional; without it the memory limit stands alone
            swap.write_text("0" if version2 else str(limit), encoding="ascii")


def join(directories: tuple[str, ...]) -> None:
    """Move the calling process, which has one thread, into these cgroups. Raises OSError.

    In version 1 the thread is moved, not the process: that takes no lock that all forks of the machine must first let go.
    """
    for directory in directories:
        thread = os.path.join(directory, "tasks")  # noqa: PTH118
        path = thread if os.path.exists(thread) else os.path.join(directory, "cgroup.procs")  # noqa: PTH110, PTH118
        with open(path, "w", encoding="ascii") as file:  # noqa: PTH123
            file.write("0")


def move(pid: int, directories: tuple[str, ...]) -> None:
    """Move a process into these cgroups. Raises OSError."""
    for directory in directories:
        (Path(directory) / "cgroup.procs").write_text(str(pid), encoding="ascii")


def leave(directories: tuple[str, ...]) -> None:
    """Move the calling process to the cgroups above these, so that they can be removed. Does not raise."""
    for directory in directories:
        with contextlib.suppress(OSError):
            join((os.path.dirname(directory),))  # noqa: PTH120


def limits_memory(directories: tuple[str, ...]) -> bool:
    """True when one of these cgroups holds its processes' memory."""
    return _any_has(directories, ("memory.max", "memory.limit_in_bytes"))


def limits_processes(directories: tuple[str, ...]) -> bool:
    """True when one of these cgroups bounds how many processes there are."""
    return _any_has(directories, ("pids.max",))


def _any_has(directories: tuple[str, ...], names: tuple[str, ...]) -> bool:
    return any(os.path.exists(os.path.join(directory, name)) for directory in directories for name in names)  # noqa: PTH110, PTH118


def remove(directories: tuple[str, ...], *, seconds: float) -> bool:
    """Kill what is in these cgroups and in those below them, and remove them; False if one is still there after `seconds`."""
    deadline = time.monotonic() + seconds
    left = list(directories)
    while left:
        for directory in list(left):
            try:
                os.rmdir(directory)  # noqa: PTH106
            except FileNotFoundError:
                pass
            except OSError:
                _empty(directory)
                continue
            left.remove(directory)
        if left and time.monotonic() > deadline:
            return False
        if left:
            time.sleep(0.002)
    return True


def thaw(directories: tuple[str, ...]) -> None:
    """Let run what stands still in these cgroups and in those below them: in version 1 nothing that is frozen can end, not even
    when it is killed. Does not raise."""
    for directory in directories:
        for path, _, names in os.walk(directory):
            if "freezer.state" in names:
                with contextlib.suppress(OSError):
                    Path(path, "freezer.state").write_text("THAWED", encoding="ascii")


def _empty(directory: str) -> None:
    """Kill what is in a cgroup, and remove those below it, as far as that goes now."""
    for path, _, _ in os.walk(directory, topdown=False):
        for pid in _read(Path(path) / "cgroup.procs").split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if path != directory:
            with contextlib.suppress(OSError):
                os.rmdir(path)  # noqa: PTH106
