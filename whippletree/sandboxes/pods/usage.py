"""What a pod says of its usage, made into numbers.

Invariants (tests/sandboxes/test_sandbox_pod_scripts.py): CPU time is the cgroup's where one is seen, else that of the processes
that are there and of those they have waited for; memory is the cgroup's or unknown.
"""

from __future__ import annotations

from whippletree.types import Usage

_TICKS = 100  # per second, in /proc on every kernel that runs containers
_TIMES = slice(11, 15)  # user and system time of a process, and of those that it waited for


def parse(said: bytes) -> Usage:
    """Reads the lines of `scripts.USAGE`."""
    first: dict[str, int] = {}
    ticks = disk = 0
    for line in said.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition(" ")
        if name == "stat":
            ticks += sum(int(field) for field in value.rpartition(")")[2].split()[_TIMES])
        elif name == "disk_kb" and value.isdigit():
            disk += int(value) << 10
        elif value.strip().isdigit():
            first.setdefault(name, int(value))
    if "cpu_usec" in first:
        seconds = first["cpu_usec"] / 1e6
    elif "cpu_nsec" in first:
        seconds = first["cpu_nsec"] / 1e9
    else:
        seconds = ticks / _TICKS
    return Usage(
        cpu_seconds=seconds, memory_peak_bytes=first.get("memory"), processes=first.get("processes", 0), disk_bytes=disk
    )
