"""Faults of other systems' sandboxes in Kubernetes, each on our own parts with its input."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from blackhole import Blackhole
from kube_real import RealApi, running_api
from kubelet_parts import missing
from pod_world import PodSite, pod_site
from sandbox_suite import processes_with, sh, until

from whippletree import sandboxes
from whippletree.errors import SandboxError
from whippletree.protocols import Sandbox, SandboxSpec

pytestmark = pytest.mark.kube

D25 = {"command": "sleep 600", "drop_after_seconds": 5}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    if reason := missing():
        pytest.skip(reason)
    with running_api(tmp_path_factory) as made:
        yield made


@pytest.fixture
async def site(api: RealApi, tmp_path: Path) -> AsyncIterator[PodSite]:
    async with pod_site(api, tmp_path) as made:
        yield made


@asynccontextmanager
async def behind(site: PodSite, way: Blackhole, directory: Path) -> AsyncIterator[Sandbox]:
    """A pod whose controller reaches the API server by `way`; pings every second, five seconds to find a lost command."""
    config = site.api.kubeconfig()
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{way.port}"
    kubeconfig = directory / "behind.yaml"
    kubeconfig.write_text(json.dumps(config))
    settings = site.config(
        kubeconfig=str(kubeconfig), ping_seconds=1.0, lost_seconds=5.0, request_seconds=3.0, retry_seconds=3.0
    )
    box = sandboxes.create(settings, SandboxSpec(sandbox_id="s"), gateway=("127.0.0.1", 9))
    try:
        await box.start()
        yield box
    finally:
        way.refusing = False
        await box.stop()


async def test_D25_a_command_whose_connection_died_is_found_again(site: PodSite, tmp_path: Path) -> None:
    """The case's command, shorter: it goes on in the pod, and its outcome is what it is."""
    async with Blackhole(site.api.port) as way, behind(site, way, tmp_path) as box:
        pieces: list[bytes] = []
        command = "echo one; while ! test -e go; do sleep 0.05; done; echo two; exit 7"
        running = asyncio.create_task(sh(box, command, timeout=60, on_output=pieces.append))
        await until(lambda: pieces == [b"one\n"], "the first piece")
        way.drop()
        await sh(box, "touch go")  # on a connection of its own
        done = await running
        assert (done.exit_code, done.output, done.timed_out) == (7, "one\ntwo\n", False)
        assert b"".join(pieces) == b"one\ntwo\n"


async def test_D25_a_command_that_was_writing_into_a_dead_connection_goes_on(site: PodSite, tmp_path: Path) -> None:
    async with Blackhole(site.api.port) as way, behind(site, way, tmp_path) as box:
        pieces: list[bytes] = []
        count = 60_000
        command = f"echo go; sleep 0.5; seq {count}; echo end"
        running = asyncio.create_task(sh(box, command, timeout=60, on_output=pieces.append, output_limit=2_000_000))
        await until(lambda: bool(pieces), "the first piece")
        way.drop()
        done = await running
        assert done.exit_code == 0
        assert done.output.split() == ["go", *map(str, range(1, count + 1)), "end"]


async def test_D25_a_command_that_never_returns_ends_at_its_limit(site: PodSite, tmp_path: Path) -> None:
    """The input as it is, with its time limit after the packets are dropped: the slot is freed, and nothing runs on."""
    mark = f"600.{os.getpid()}"
    async with Blackhole(site.api.port) as way, behind(site, way, tmp_path) as box:
        slots = asyncio.Semaphore(1)

        async def in_slot() -> None:
            async with slots:
                done = await sh(box, f"{D25['command']}.{os.getpid()}", timeout=D25["drop_after_seconds"] + 3)
                assert (done.exit_code, done.timed_out) == (124, True)

        running = asyncio.create_task(in_slot())
        await until(lambda: processes_with(f"sleep\0{mark}") != [], "the command")
        await asyncio.sleep(D25["drop_after_seconds"])
        way.drop()
        await running
        assert processes_with(f"sleep\0{mark}") == []
        async with slots:
            assert (await sh(box, "echo on")).output == "on\n"


async def test_D25_an_outcome_that_cannot_be_found_out_is_unknown(site: PodSite, tmp_path: Path) -> None:
    async with Blackhole(site.api.port) as way, behind(site, way, tmp_path) as box:
        pieces: list[bytes] = []
        running = asyncio.create_task(sh(box, "echo one; sleep 600", timeout=300, on_output=pieces.append))
        await until(lambda: pieces == [b"one\n"], "the first piece")
        way.drop(new=True)
        began = time.monotonic()
        with pytest.raises(SandboxError, match="outcome of a command is unknown"):
            await running
        assert time.monotonic() - began < 60  # of the 300 that it had


async def test_D25_a_pool_hosts_command_is_found_again_too(site: PodSite, tmp_path: Path) -> None:
    async with Blackhole(site.api.port) as way, behind(site, way, tmp_path) as box:
        assert box.handle is not None
        other = sandboxes.attach(box.handle)
        pieces: list[bytes] = []
        command = ("/bin/sh", "-c", "echo one; while ! test -e go; do sleep 0.05; done; exit 3")
        running = asyncio.create_task(asyncio.to_thread(lambda: other.exec(command, timeout=60, on_output=pieces.append)))
        await until(lambda: pieces == [b"one\n"], "the first piece")
        way.drop()
        await sh(box, "touch go")
        assert (await running).exit_code == 3


async def test_D25_a_command_that_never_began_is_started_once_more_and_runs_once(site: PodSite, tmp_path: Path) -> None:
    async with Blackhole(site.api.port) as way, behind(site, way, tmp_path) as box:
        before = way.opened
        way.drop(new=True)
        running = asyncio.create_task(sh(box, "echo x >> count; wc -l < count", timeout=60))
        await until(lambda: way.opened > before, "the connection")
        way.refusing = False
        done = await running
        assert (done.exit_code, done.output.strip()) == (0, "1")
