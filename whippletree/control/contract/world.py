"""Runs scenarios with real parts: store, gateway, scripted engine, sandbox, and the launcher that attempts have.

Invariants (tests/control/test_contract_check.py): a run ends by its limit; what cannot be run is told in `error`, with the
cause; sandboxes, stores and ports are gone afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whippletree import sandboxes
from whippletree.control.config import ControlConfig, HarnessBinding
from whippletree.control.contract import lookups
from whippletree.control.contract.model import VOCABULARY
from whippletree.control.contract.scenarios import CHILD, Scenario
from whippletree.control.contract.script import FINAL, Script, is_main
from whippletree.control.contract.tap import Asked, Tap
from whippletree.control.launch import Launcher, Launchers
from whippletree.control.policy import AgentEnd
from whippletree.control.records import ACCOUNT
from whippletree.engines.scripted import ScriptedEngine
from whippletree.errors import WhippletreeError
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import mint
from whippletree.gateway.server import Parts, serving
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, Limits, Renderer, Sandbox, SandboxSpec, Store
from whippletree.sandboxes.config import SandboxConfig
from whippletree.store import open_store
from whippletree.traces import Reconciliation, Trace, build_trace, read_account, reconcile
from whippletree.types import Call, RolloutSpec, Sampling, Usage

CONTEXT = 1_000_000  # tokens: the scripted engine's
PATIENCE = 30.0  # seconds: how long the gateway waits for an engine
LIMITS = Limits(memory_mb=6144, processes=512, open_files=8192, file_mb=512)
SPACE_MB = 1024
_GIT = "git init -q . && git -c user.email=check@localhost -c user.name=check commit -q --allow-empty -m start"
_COUNTERS = "cat /proc/net/snmp"


@dataclass
class Run:
    """One attempt of a scenario and what was seen of it. Times in seconds; `first_request` is None where none came;
    `used_before`: CPU-seconds of the sandbox before the harness began.

    `unrouted` counts packets that no route took, `lookups` are the names that were looked up; None where that cannot be seen.
    """

    scenario: Scenario
    token: str
    end: AgentEnd = field(default_factory=lambda: AgentEnd(result=HarnessResult(exit_status="not run", crashed=True)))
    error: str = ""
    began: float = 0.0
    used_before: float = 0.0
    seconds: float = 0.0
    first_request: float | None = None
    asked: list[Asked] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    trace: Trace = field(default_factory=Trace)
    told: Reconciliation | None = None
    complete: bool = False
    overflowed: bool = False
    written: dict[str, str] = field(default_factory=dict)
    usage: Usage | None = None
    unrouted: int | None = None
    lookups: list[str] | None = None

    @property
    def did_its_job(self) -> bool:
        """Whether every command ran and every file has its text."""
        return self.complete and self.written == self.scenario.writes

    @property
    def ended_well(self) -> bool:
        """Whether it ended by itself, without an error and within its limits."""
        result = self.end.result
        return (
            not self.error and not self.end.timed_out and not result.crashed and not result.ran_out and self.end.cause is None
        )


class World:
    """Where the scenarios of one check are run. `directory` is private to it."""

    def __init__(
        self,
        name: str,
        facts: HarnessFacts,
        settings: Mapping[str, object],
        *,
        directory: Path,
        renderer: Renderer,
        control: ControlConfig,
    ) -> None:
        """`name`: what the run file would say, a shipped name or "module:Class". `settings` are those of every scenario, which
        may add its own. `control.launch` says how it is launched."""
        self.facts = facts
        self._settings = dict(settings)
        self.sandbox = SandboxConfig(root=str(directory / "boxes"), space_mb=SPACE_MB)
        self._name = name
        self._directory = directory
        self._renderer = renderer
        self._control = control
        self._switch = directory / "nsswitch.conf"
        self._switch.write_text(lookups.SWITCH, encoding="utf-8")

    async def run(self, scenario: Scenario) -> list[Run]:
        """The scenario's attempt, or both of them. Never raises WhippletreeError: it is told in the run."""
        runs = [Run(scenario=scenario, token=f"wt-task-{secrets.token_hex(4)}") for _ in range(2 if scenario.twice else 1)]
        scripts = [
            Script(
                self.facts,
                run.token,
                scenario.moves,
                child=CHILD if scenario.child_moves else "",
                child_moves=scenario.child_moves,
                overflow_at=scenario.overflow_at,
            )
            for run in runs
        ]
        place = self._directory / scenario.name
        place.mkdir()
        try:
            with open_store(place / "store") as store:
                async with self._gateway(store, scripts) as port, self._launchers(place, scenario) as launcher:
                    attempts = zip(runs, scripts, strict=True)
                    await asyncio.gather(*(self._attempt(run, script, store, port, launcher) for run, script in attempts))
        except WhippletreeError as error:
            for run in runs:
                run.error = run.error or str(error)
        return runs

    @contextlib.asynccontextmanager
    async def _gateway(self, store: Store, scripts: Sequence[Script]) -> AsyncIterator[int]:
        def answer(prompt: Sequence[int]) -> list[int]:
            text = self._renderer.decode(list(prompt))
            script = next((one for one in scripts if one.token in text), scripts[0])
            return [*self._encode(script.answer(text)), *self._renderer.stop_token_ids]

        engine = self.make_engine(answer)
        self._secret = secrets.token_bytes(32)
        parts = Parts(store=store, engines=[engine], renderer=self._renderer, secret=self._secret)
        async with serving(GatewayConfig(engine_wait_limit=PATIENCE), parts) as port:
            yield port

    def make_tap(self, run: Run, target: str) -> Tap:
        """What stands between the harness of a run and the gateway."""
        return Tap(target, counts=lambda body: is_main(self.facts, body), faults=run.scenario.faults)

    def make_engine(self, answer: Callable[[Sequence[int]], list[int]]) -> ScriptedEngine:
        """The engine of the gateway."""
        return ScriptedEngine(answer, context=CONTEXT, vocabulary=VOCABULARY, chunk_tokens=4)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._renderer.codec.encode(text)  # type: ignore[attr-defined]  # the one that model.py made
        return ids

    @contextlib.asynccontextmanager
    async def _launchers(self, place: Path, scenario: Scenario) -> AsyncIterator[Launcher]:
        binding = HarnessBinding(harness=self._name, settings=self._settings | scenario.settings)
        launchers = Launchers((binding,), self._control, place)
        try:
            await launchers.start()
            launcher, _ = launchers.find(_spec(self._name, "none"))
            yield launcher
        finally:
            await launchers.close()

    async def _attempt(self, run: Run, script: Script, store: Store, port: int, launcher: Launcher) -> None:
        spec = _spec(self._name, run.token)
        await asyncio.wrap_future(store.open_session(spec))
        tap = self.make_tap(run, f"http://127.0.0.1:{port}")
        output = self._directory / run.scenario.name / run.token
        async with tap.serving() as outside:
            read_only = (*launcher.read_only, (str(self._switch), lookups.SWITCH_PATH))
            box_spec = SandboxSpec(sandbox_id=run.token, read_only=read_only, limits=LIMITS)
            box = sandboxes.create(self.sandbox, box_spec, gateway=("127.0.0.1", outside))
            try:
                handle = await box.start()
                host, inner = box.gateway if launcher.inside else ("127.0.0.1", outside)
                attempt = AttemptSpec(
                    rollout_id=run.token,
                    attempt=1,
                    instruction=instruction(run.token),
                    base_url=f"http://{host}:{inner}/v1",
                    api_key=mint(self._secret, run.token, 1),
                    model="policy",
                    workdir=handle.workdir,
                    output_dir=str(output),
                    timeout=self._control.deadlines.agent,
                    settings=self._settings | run.scenario.settings,
                    sandbox=handle,
                )
                await self._act(run, attempt, box, launcher)
            except WhippletreeError as error:
                run.error = str(error)
            finally:
                await box.stop()
        run.asked = tap.asked
        run.complete, run.overflowed = script.complete, script.overflowed
        run.calls = store.calls(run.token, 1)
        run.trace = build_trace(run.calls, [store.payload(call) for call in run.calls])
        self._reconcile(run, output)

    async def _act(self, run: Run, attempt: AttemptSpec, box: Sandbox, launcher: Launcher) -> None:
        await box.exec(["/bin/sh", "-c", _GIT], timeout=30)
        agent = await launcher.setup(attempt, box)
        before, counted = await box.usage(), await _unrouted(box)
        handle = attempt.sandbox
        isolated = launcher.inside and handle is not None and handle.backend not in ("process", "kubernetes")
        with lookups.noted(handle.pid) if handle is not None and isolated else contextlib.nullcontext() as run.lookups:
            run.began, run.used_before = time.time(), before.cpu_seconds
            run.end = await agent.run(attempt.timeout)
            run.seconds = time.time() - run.began
        after = await box.usage()
        run.usage = Usage(
            cpu_seconds=after.cpu_seconds - before.cpu_seconds,
            memory_peak_bytes=after.memory_peak_bytes,
            processes=after.processes,
            disk_bytes=after.disk_bytes,
        )
        now = await _unrouted(box)
        if isolated and counted is not None and now is not None:
            run.unrouted = now - counted
        for name in run.scenario.writes:
            data = await box.read(f"{attempt.workdir}/{name}")
            if data is not None:
                run.written[name] = data.decode("utf-8", errors="replace").strip()

    def _reconcile(self, run: Run, output: Path) -> None:
        if run.asked:
            run.first_request = run.asked[0].at
        account = output / ACCOUNT
        if not account.is_file():
            return
        try:
            run.told = reconcile(run.trace, read_account(account))
        except WhippletreeError as error:
            run.error = run.error or str(error)


def instruction(token: str) -> str:
    """What the harness is asked to do."""
    return (
        f"Run the shell commands that you find useful, one after another, then say that you are done. This is {token}. {FINAL}"
    )


def _spec(harness: str, rollout_id: str) -> RolloutSpec:
    sampling = Sampling(max_tokens=4000)
    return RolloutSpec(
        rollout_id=rollout_id,
        group_id="check",
        source="check",
        task_id="check",
        task_path="",
        harness=harness,
        sampling=sampling,
    )


async def _unrouted(box: Sandbox) -> int | None:
    """How many packets found no route in a sandbox's network; None where the kernel does not say."""
    done = await box.exec(["/bin/sh", "-c", _COUNTERS], timeout=10)
    lines = [line.split() for line in done.output.splitlines() if line.startswith("Ip:")]
    if len(lines) != 2 or "OutNoRoutes" not in lines[0]:
        return None
    return int(lines[1][lines[0].index("OutNoRoutes")])
