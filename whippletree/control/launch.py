"""Two ways to run a harness: as a process inside the attempt's sandbox, or as a tenant of a pool host.

Invariants (tests/control/test_attempt.py):
- a launch ends by its time limit, and says so;
- what an adapter raises, or a sandbox refuses, becomes the attempt's cause and never another exception;
- the attempt's key is in no file that is kept;
- sources may differ in how they launch one harness;
- a harness's end is that of its own process: what it left running, with its output still open, delays nothing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from whippletree.control import records
from whippletree.control.config import ControlConfig, HarnessBinding
from whippletree.control.policy import MESSAGE_LIMIT, AgentEnd
from whippletree.control.pool import Pool
from whippletree.errors import ConfigurationError, HarnessError, SandboxError, WhippletreeError
from whippletree.harnesses import load_harness
from whippletree.protocols import (
    AttemptSpec,
    ConfiguredHarness,
    ExecResult,
    Harness,
    HarnessResult,
    LaunchPlan,
    PoolHarness,
    Sandbox,
)
from whippletree.types import Cause, CauseClass, Launch, RolloutSpec

log = logging.getLogger(__name__)

HIDDEN = "[key]"
OUTPUT_LIMIT = 1_000_000  # bytes of a harness's output that are kept: of more, the beginning and the end
OUTPUT = "/logs/agent"

# The harness's output goes to a file, so that no process that it leaves behind holds the pipe of this command open.
_TO_FILE = f"""mkdir -p "${{WHIPPLETREE_ROOT:-}}{OUTPUT}" && exec > "${{WHIPPLETREE_ROOT:-}}{OUTPUT}/$1" 2>&1 || exit 125
[ -z "$2" ] || exec < "${{WHIPPLETREE_ROOT:-}}{OUTPUT}/$2" || exit 125
shift 2; exec "$@\""""
_TAIL = f"""exec tail -c "$2" -- "${{WHIPPLETREE_ROOT:-}}{OUTPUT}/$1\""""
CUT = "\n[output was cut here]\n"
KILL_SECONDS = 10.0  # limit for ending an agent's processes


class Agent(Protocol):
    """A harness that is set up for one attempt."""

    async def run(self, timeout: float) -> AgentEnd:
        """To its end, or to `timeout` seconds."""
        ...


class Launcher(Protocol):
    """One harness in one launch mode."""

    inside: bool  # whether the harness itself runs inside the sandbox
    read_only: tuple[tuple[str, str], ...]  # what it needs to see there: (host path, path inside)
    slack: float  # seconds that a run may take beyond its limit: waiting for its turn, ending

    async def setup(self, spec: AttemptSpec, sandbox: Sandbox) -> Agent:
        """Prepare one attempt. Raises SandboxError or HarnessError."""
        ...


class Launchers:
    """The run's harnesses, by what rollouts name. Holds one pool per adapter that is launched in one."""

    def __init__(self, bindings: Sequence[HarnessBinding], config: ControlConfig, log_directory: Path) -> None:
        self._bindings = {(binding.source, binding.harness): binding for binding in bindings}
        self._launchers: dict[tuple[str, str, str], Launcher] = {}
        self._launch = config.launch
        self.pools: list[Pool] = []
        directory = Path(config.harness_directory).expanduser() if config.harness_directory else None
        shared: dict[tuple[str, Launch], Launcher] = {}
        for binding in self._bindings.values():
            adapter, launch = self._kind(binding)
            harness = load_harness(adapter, directory)
            if launch == "process" and isinstance(harness, ConfiguredHarness):
                launcher: Launcher = ProcessLauncher(harness.configured(binding.settings))
            elif (adapter, launch) in shared:
                launcher = shared[adapter, launch]
            elif launch == "process":
                launcher = shared[adapter, launch] = ProcessLauncher(harness)
            elif isinstance(harness, PoolHarness):
                pool = Pool(adapter, config.pool, log_directory, grace=config.deadlines.grace, harness_directory=directory)
                self.pools.append(pool)
                launcher = shared[adapter, launch] = PoolLauncher(pool, harness)
            else:
                cause = f"harness {adapter} cannot run inside a pool host"
                raise ConfigurationError(cause, 'set launch = "process" in [sources.harness], or control.launch')
            self._launchers[binding.source, binding.harness, ""] = launcher
            for variant, settings in binding.variants.items():
                own = launcher
                if launch == "process" and isinstance(harness, ConfiguredHarness):
                    own = ProcessLauncher(harness.configured(binding.settings | settings))
                self._launchers[binding.source, binding.harness, variant] = own

    def _kind(self, binding: HarnessBinding) -> tuple[str, Launch]:
        return binding.adapter or binding.harness, binding.launch or self._launch

    async def start(self) -> None:
        """Start the pools. Raises HarnessError."""
        for pool in self.pools:
            pool.begin()
        for pool in self.pools:
            await pool.start()

    async def close(self) -> None:
        """End the pools."""
        for pool in self.pools:
            await pool.close()

    def find(self, spec: RolloutSpec) -> tuple[Launcher, HarnessBinding]:
        """What runs this rollout, and its binding with the settings of its variant. Raises ConfigurationError."""
        binding = self._bindings.get((spec.source, spec.harness)) or self._bindings.get(("", spec.harness))
        if binding is None:
            raise ConfigurationError(
                f"rollout {spec.rollout_id}: source {spec.source!r} has no harness {spec.harness!r}",
                "name it in the run file's sources",
            )
        settings = binding.of(spec)
        launcher = self._launchers[binding.source, binding.harness, spec.variant]
        return launcher, msgspec.structs.replace(binding, settings=settings)


class PoolLauncher:
    """Attempts as tenants of a pool."""

    inside = False
    read_only: tuple[tuple[str, str], ...] = ()

    def __init__(self, pool: Pool, harness: Harness) -> None:
        self._pool = pool
        self._harness = harness
        self.slack = pool.config.ready_seconds + KILL_SECONDS

    async def setup(self, spec: AttemptSpec, sandbox: Sandbox) -> Agent:
        """Nothing to prepare: the host enters the sandbox by its handle."""
        return _PoolAgent(self._pool, self._harness, spec, sandbox)


class _PoolAgent:
    def __init__(self, pool: Pool, harness: Harness, spec: AttemptSpec, sandbox: Sandbox) -> None:
        self._pool = pool
        self._harness = harness
        self._spec = spec
        self._sandbox = sandbox

    async def run(self, timeout: float) -> AgentEnd:
        spec = self._spec
        if (proxy := self._sandbox.proxy_environment) and spec.sandbox is not None:  # for every command of the harness
            handle = msgspec.structs.replace(spec.sandbox, environment=spec.sandbox.environment | proxy)
            spec = msgspec.structs.replace(spec, sandbox=handle)
        end = await self._pool.run(spec, timeout)
        await asyncio.to_thread(self._account)
        return end

    def _account(self) -> None:
        """Write the harness's account of what it left in its output directory."""
        directory = Path(self._spec.output_dir)
        files = [
            path for path in sorted(directory.glob("*")) if path.is_file() and path.stat().st_size <= records.RECORDS_LIMIT
        ]
        account = records.tell(self._harness, "", {str(path): path.read_bytes() for path in files})
        if account is not None:
            records.keep(directory, {records.ACCOUNT: account}, self._spec.api_key, HIDDEN)


class ProcessLauncher:
    """One harness process per attempt, inside the sandbox."""

    inside = True
    slack = KILL_SECONDS

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.read_only = harness.read_only

    async def setup(self, spec: AttemptSpec, sandbox: Sandbox) -> Agent:
        """Ask the adapter how to launch, and put its files in place."""
        try:
            plan = self._harness.plan(spec)
        except WhippletreeError:
            raise
        except Exception as error:
            log.exception("%s attempt %d: the adapter cannot plan", spec.rollout_id, spec.attempt)
            raise HarnessError(f"the adapter of {self._harness.name} cannot plan: {error!r}", "mend the adapter") from error
        if spec.step:  # an earlier step may have left its own, and a copy never replaces a file
            left = [path for path, _ in plan.files] + [plan.trajectory, *(records.root_of(path)[0] for path in plan.records)]
            await sandbox.exec(["/bin/rm", "-rf", "--", *filter(None, left)], timeout=KILL_SECONDS, cwd="/")
        said = f"input-{secrets.token_hex(8)}.txt" if plan.stdin else ""
        with tempfile.TemporaryDirectory(prefix="whippletree-plan-") as directory:
            for number, (path, text) in enumerate((*plan.files, *(((f"{OUTPUT}/{said}", plan.stdin),) if said else ()))):
                source = Path(directory, str(number))
                source.write_text(text, encoding="utf-8")
                await sandbox.put(source, path)
        return _ProcessAgent(self._harness, plan, spec, sandbox, said)


class _ProcessAgent:
    def __init__(self, harness: Harness, plan: LaunchPlan, spec: AttemptSpec, sandbox: Sandbox, said: str) -> None:
        self._harness = harness
        self._plan = plan
        self._input = said
        self._spec = spec
        self._sandbox = sandbox

    async def run(self, timeout: float) -> AgentEnd:
        name = f"output-{secrets.token_hex(8)}.txt"
        try:
            done = await self._sandbox.exec(
                ["/bin/sh", "-c", _TO_FILE, "agent", name, self._input, *self._plan.argv],
                timeout=timeout,
                environment=self._sandbox.proxy_environment | self._plan.environment,
                cwd=self._spec.workdir,
                user=self._spec.user,
            )
        except SandboxError as error:
            cause = Cause(cause=CauseClass.SANDBOX, phase="agent", message=error.cause, next_step=error.next_step)
            return AgentEnd(result=HarnessResult(exit_status="sandbox_lost"), cause=cause)
        ended = msgspec.structs.replace(done, output=done.output + await self._said(name))
        found = await records.fetch(self._sandbox, [path for path in (self._plan.trajectory, *self._plan.records) if path])
        trajectory = found.get(self._plan.trajectory)
        self._keep(ended, trajectory, found)
        if ended.timed_out:
            return AgentEnd(result=HarnessResult(exit_status="deadline", message=ended.output[-MESSAGE_LIMIT:]), timed_out=True)
        return AgentEnd(result=self._interpret(ended, trajectory))

    async def _said(self, name: str) -> str:
        """The harness's output; of more than the limit, its two ends, since the last says how it ended. "" where there is none,
        also where the agent put something else in its place."""
        try:
            said = await self._sandbox.read(f"{OUTPUT}/{name}", OUTPUT_LIMIT) or b""
            if len(said) < OUTPUT_LIMIT:
                return said.decode("utf-8", errors="replace")
            half = OUTPUT_LIMIT // 2
            end = await self._sandbox.exec(
                ["/bin/sh", "-c", _TAIL, "tail", name, str(half)], timeout=KILL_SECONDS, cwd="/", output_limit=half
            )
            return said[:half].decode("utf-8", errors="replace") + CUT + end.output
        except SandboxError as error:
            log.warning("%s attempt %d: %s cannot be read: %s", self._spec.rollout_id, self._spec.attempt, name, error)
            return ""

    def _interpret(self, ended: ExecResult, trajectory: bytes | None) -> HarnessResult:
        try:
            return self._harness.result(ended.exit_code, ended.output, trajectory)
        except Exception as error:
            log.exception("%s attempt %d: the adapter cannot read the end", self._spec.rollout_id, self._spec.attempt)
            message = "".join(traceback.format_exception(error))[-MESSAGE_LIMIT:]
            return HarnessResult(exit_status="adapter_error", crashed=True, message=message)

    def _keep(self, ended: ExecResult, trajectory: bytes | None, found: dict[str, bytes]) -> None:
        """Write the harness's output, what it recorded and its account beside the run, without the attempt's key."""
        kept = {"agent.log": ended.output.encode()}
        kept |= {f"records/{path.lstrip('/')}": data for path, data in found.items() if path != self._plan.trajectory}
        if trajectory is not None:
            kept["trajectory.json"] = trajectory
        if (account := records.tell(self._harness, ended.output, found)) is not None:
            kept[records.ACCOUNT] = account
        records.keep(Path(self._spec.output_dir), kept, self._spec.api_key, HIDDEN)
