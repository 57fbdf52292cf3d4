"""A run directory with its store, and the processes on it: bench/control.py and bench/harnesses.py measure attempts so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from whippletree.control.config import ControlConfig, HarnessBinding
from whippletree.control.spec import ControllerSpec
from whippletree.gateway.keys import load_secret
from whippletree.sandboxes import SandboxConfig
from whippletree.store import SqliteStore
from whippletree.types import RolloutSpec

BENCH = Path(__file__).resolve().parent.parent


class Plane:
    """A run directory with its store, and the processes on it. `task`: the one that all rollouts do."""

    def __init__(self, directory: Path, kind: str, task: Path) -> None:
        self.directory = directory
        self.boxes = tempfile.TemporaryDirectory(prefix="wt-")  # sockets of sandboxes need a short path
        self.sandbox = SandboxConfig(kind=kind, root=self.boxes.name + "/b")
        load_secret(directory / "secret")
        self.task = task

    @contextmanager
    def process(self, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process until the body ends."""
        log = (self.directory / f"{argv[0]}.log").open("wb")
        places = os.pathsep.join(filter(None, [str(BENCH), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
        child = subprocess.Popen([sys.executable, "-m", *argv], cwd=BENCH, env=environment, stdout=log, stderr=log)
        try:
            yield child
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(120)
            log.close()

    def ready(self, child: subprocess.Popen[bytes], path: Path) -> dict[str, int]:
        """What a process says once it is ready."""
        until(lambda: path.exists() or child.poll() is not None, 120)
        if not path.exists():
            raise SystemExit(f"a process did not start; see the logs under {self.directory}")
        return json.loads(path.read_text())

    @contextmanager
    def controlling(self, binding: HarnessBinding, control: ControlConfig, port: int) -> Iterator[int]:
        """A controller until the body ends: its process id. `port`: the gateway's."""
        ready = self.directory / f"{binding.harness}.ready"
        spec = ControllerSpec(
            directory=str(self.directory),
            store=str(self.directory / "store"),
            secret=str(self.directory / "secret"),
            gateway_url=f"http://127.0.0.1:{port}",
            ready_file=str(ready),
            harnesses=(binding,),
            sandbox=self.sandbox,
            control=control,
        )
        path = self.directory / f"{binding.harness}.json"
        path.write_bytes(msgspec.json.encode(spec))
        with self.process("whippletree.control", str(path)) as child:
            self.ready(child, ready)
            yield child.pid

    def add(self, store: SqliteStore, count: int, harness: str) -> None:
        """Queue rollouts."""
        store.create_rollouts([draft(f"{harness}-{number}", str(self.task), harness) for number in range(count)]).result()


def draft(name: str, task: str = "/t", harness: str = "h") -> RolloutSpec:
    """A rollout."""
    return RolloutSpec(rollout_id=name, group_id="g", source=f"s-{harness}", task_id="t", task_path=task, harness=harness)


def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise SystemExit("the benchmark waited in vain")
        time.sleep(0.02)


def ended(store: SqliteStore) -> int:
    """How many rollouts have ended."""
    return sum(entry.count for entry in store.queue().counts if entry.state in ("succeeded", "failed"))
