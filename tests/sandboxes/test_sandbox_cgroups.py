"""Cgroups of sandboxes, where this process may make them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox_suite import Make, sh

from whippletree import sandboxes
from whippletree.protocols import Limits
from whippletree.sandboxes import cgroups


def test_names_differ_by_folder_and_id() -> None:
    names = {cgroups.name_of(root, name) for root in ("/a", "/b") for name in ("x", "y")}
    assert len(names) == 4 and all(name.startswith(cgroups.PREFIX) for name in names)


def test_a_failure_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(cgroups.CgroupError, match=r"\w"):
        cgroups.create(f"{cgroups.PREFIX}test", f"no/such/parent-{os.getpid()}", memory_mb=64, processes=8)
    assert not [path for path, _, _ in os.walk("/sys/fs/cgroup") if path.endswith(f"/{cgroups.PREFIX}test")]


def test_a_removed_cgroup_takes_its_processes_along() -> None:
    name = f"{cgroups.PREFIX}test-{os.getpid()}"
    try:
        made = cgroups.create(name, "", memory_mb=64, processes=8)
    except cgroups.CgroupError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    join = "; ".join(f"echo 0 > {directory}/cgroup.procs" for directory in made)
    work = "import time; held = bytearray(8 << 20); time.sleep(600)"
    sleeper = subprocess.Popen(("sh", "-c", f'{join}; exec {sys.executable} -I -c "{work}"'))
    try:
        while str(sleeper.pid) not in Path(made[0], "cgroup.procs").read_text().split():
            assert sleeper.poll() is None
        assert Path(made[-1], "pids.max").read_text().strip() == "8"
        assert cgroups.limits_memory(made) and cgroups.limits_processes(made) and not cgroups.limits_processes(())
        assert cgroups.memory_peak(()) is None
        while not (cgroups.memory_peak(made) or 0) >= 8 << 20:  # counted as pages are touched, so soon after it joined
            assert sleeper.poll() is None
            time.sleep(0.01)
    finally:
        assert cgroups.remove(made, seconds=10.0) is True
    assert sleeper.wait(timeout=10) == -9
    assert not any(Path(directory).exists() for directory in made)
    assert cgroups.remove(made, seconds=1.0) is True


def test_what_is_frozen_in_a_cgroup_can_be_removed() -> None:
    """As a snapshot leaves it whose keeper was killed. In version 1 it does not end before it is thawed."""
    name = f"{cgroups.PREFIX}frozen-{os.getpid()}/inner"
    made = tuple(path for path in cgroups.every(f"/{name}") if "/freezer/" in path)
    if not made or not os.access("/sys/fs/cgroup/freezer", os.W_OK):
        pytest.skip("no freezer of version 1 can be used here")
    inner = Path(made[0])
    inner.mkdir(parents=True)
    with subprocess.Popen(("sleep", "600")) as sleeper:
        try:
            (inner / "cgroup.procs").write_text(str(sleeper.pid))
            (inner / "freezer.state").write_text("FROZEN")
            assert (inner / "freezer.state").read_text() in ("FROZEN\n", "FREEZING\n")
            assert cgroups.remove(made, seconds=0.2) is False
            assert sleeper.poll() is None
        finally:
            cgroups.thaw(made)
            assert cgroups.remove(made, seconds=10.0) is True
        assert sleeper.wait(timeout=10) == -9


def test_a_share_of_cpu_time_is_set() -> None:
    name = f"{cgroups.PREFIX}cpu-{os.getpid()}"
    try:
        made = cgroups.create(name, "", memory_mb=0, processes=0, cpus=0.25)
    except cgroups.CgroupError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        (directory,) = map(Path, made)
        if (directory / "cpu.max").exists():
            assert (directory / "cpu.max").read_text().split() == ["25000", "100000"]
        else:
            assert (directory / "cpu.cfs_quota_us").read_text().strip() == "25000"
            assert (directory / "cpu.cfs_period_us").read_text().strip() == "100000"
    finally:
        assert cgroups.remove(made, seconds=10.0) is True


@pytest.mark.parametrize("kind", ["process", "bubblewrap", "runc"])
async def test_a_sandbox_has_its_share_of_cpu_time(make: Make, kind: str) -> None:
    support = sandboxes.probe()
    if reason := support.cgroups or {"runc": support.runc, "bubblewrap": support.bubblewrap}.get(kind, ""):
        pytest.skip(f"not here: {reason}")
    box = await make(kind, limits=Limits(memory_mb=0, processes=0, cpus=0.5, space_mb=3))
    assert box.handle is not None
    held = [Path(directory) for directory in box.handle.cgroups]
    files = [path / name for path in held for name in ("cpu.cfs_quota_us", "cpu.max")]
    quotas = [file.read_text().split()[0] for file in files if file.exists()]
    if not quotas:
        pytest.skip("no cpu controller is mounted here")
    assert quotas == ["50000"]
    (members,) = ((path / "cgroup.procs").read_text().split() for path in held)
    assert kind == "process" or str(box.handle.pid) in members
    if kind != "process":
        assert (await sh(box, "df -Pm /tmp | tail -n 1")).output.split()[1] == "3"
