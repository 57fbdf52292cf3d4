"""The processes of the benchmark as `bench/gateway.py` drives them: servers until a body ends, and one load at a time."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gateway_parts.conversations import Answer, Shape, Writer, bodies, make_model, shared_system
from gateway_parts.load import PassResult, Plan, Request
from gateway_parts.servers import EngineSpec, GatewaySpec, RelaySpec
from whippletree.gateway.keys import load_secret, mint
from whippletree.gateway.ownership import owner

BENCH = Path(__file__).resolve().parent.parent
TEMPLATE = BENCH.parent / "tests" / "rendering" / "templates" / "thinking.jinja"  # ChatML with whole tools, like Qwen3's


class Running:
    """A server process of the benchmark."""

    def __init__(self, kind: str, spec: msgspec.Struct, directory: Path) -> None:
        path = directory / f"{kind}.json"
        path.write_bytes(msgspec.json.encode(spec))
        self._port_file = Path(spec.port_file)  # type: ignore[attr-defined]
        self._port_file.unlink(missing_ok=True)
        self.log = (directory / f"{kind}.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway_parts.servers", kind, str(path)], cwd=BENCH, stdout=self.log, stderr=self.log
        )
        deadline = time.monotonic() + 120
        while not self._port_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{kind} did not start: {Path(self.log.name).read_text()[-2000:]}")
            time.sleep(0.05)
        ready = json.loads(self._port_file.read_text())
        self.port: int = ready["port"]
        self.workers: list[int] = ready.get("workers") or [self.port]

    def resident(self) -> int:
        """Bytes of memory of the process (and its workers)."""
        pids = [self.process.pid, *_children(self.process.pid)]
        return sum(_status(pid, "VmRSS:") for pid in pids) * 1024

    def stop(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


class Elsewhere:
    """A server that somebody else has started."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.workers = [port]


class Bench:
    """Everything that is made once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.model = make_model(directory / "model")
        self.writer = Writer(self.model)
        self.answer: Answer = self.writer.answer()
        self.system = shared_system(self.writer)
        self._made = 0

    # --- servers ---------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def engine(self, **pace: float) -> Iterator[Running]:
        """The fake engine."""
        spec = EngineSpec(port_file=str(self.directory / "engine.port"), ids=self.answer.ids, **pace)  # type: ignore[arg-type]
        with _stopping(Running("engine", spec, self.directory)) as running:
            yield running

    @contextlib.contextmanager
    def relay(self, engine: Running | Elsewhere) -> Iterator[Running]:
        """The bare relay."""
        spec = RelaySpec(port_file=str(self.directory / "relay.port"), upstream=f"http://127.0.0.1:{engine.port}")
        with _stopping(Running("relay", spec, self.directory)) as running:
            yield running

    @contextlib.contextmanager
    def gateway(self, engine: Running, rollouts: int, workers: int = 1) -> Iterator[Running]:
        """The gateway on a fresh run directory."""
        self._made += 1
        run = self.directory / f"run-{self._made}"
        load_secret(run / "secret")
        spec = GatewaySpec(
            port_file=str(self.directory / "gateway.port"),
            directory=str(run),
            model=str(self.model),
            template=str(TEMPLATE),
            engine=f"http://127.0.0.1:{engine.port}",
            rollouts=rollouts,
            workers=workers,
        )
        with _stopping(Running("gateway", spec, self.directory)) as running:
            yield running
        shutil.rmtree(run)

    @property
    def run_directory(self) -> Path:
        """The run directory of the gateway that was started last."""
        return self.directory / f"run-{self._made}"

    # --- load ------------------------------------------------------------------------------------------------------------

    def passes(
        self,
        server: Running | Elsewhere,
        connections: int,
        rollouts: int,
        shape: Shape,
        *,
        stream: bool,
        keys: bool,
        spread: float = 0.0,
    ) -> list[PassResult]:
        """Send `rollouts` conversations over `connections`; one result per turn of the conversations."""
        secret = load_secret(self.run_directory / "secret") if keys else b""
        texts = [bodies(self.writer, self.answer, self.system, shape, stream=stream) for _ in range(rollouts)]
        plan = Plan(connections=[[[] for _ in range(shape.calls)] for _ in range(connections)])
        plan.spread = spread
        plan.content = (b'"content":"' if keys else b'"content":" word') if stream else b""
        for index, requests in enumerate(texts):
            name = f"r{index}"
            port = server.workers[owner(name, len(server.workers))]
            key = mint(secret, name, 1) if keys else "none"
            for number, body in enumerate(requests):
                plan.connections[index % connections][number].append(Request(port=port, data=_http(port, key, body)))
        return self.load(plan)

    def load(self, plan: Plan) -> list[PassResult]:
        """Run a plan in its own process."""
        path = self.directory / "plan.msgpack"
        path.write_bytes(msgspec.msgpack.encode(plan))
        done = subprocess.run(
            [sys.executable, "-m", "gateway_parts.load", str(path)], cwd=BENCH, stdout=subprocess.PIPE, check=True
        )
        return msgspec.json.decode(done.stdout, type=list[PassResult])


@contextlib.contextmanager
def _stopping(running: Running) -> Iterator[Running]:
    try:
        yield running
    finally:
        running.stop()


def _http(port: int, key: str, body: bytes) -> bytes:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
