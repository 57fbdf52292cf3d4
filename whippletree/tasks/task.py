"""A task as the rest of the system knows it: what to tell the agent, step by step, in which environment, and how to judge it.

Made by `reading.load_task`. A task without steps of its own is one with a single step that has no name.

Invariants (tests/tasks/test_read_task.py):
- there is at least one step, and the names of steps differ;
- nothing here is read from disk again but the files whose paths are named.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from whippletree.protocols import SandboxSpec
from whippletree.types import Struct


class Network(Struct):
    """What a phase may reach, as the task asks for it; what it gets is the run's decision. `key`: of task.toml, where it says
    so; "" for a task that says nothing, which by its format means "public", and here that it asks for nothing.

    Example: Network(mode="allowlist", hosts=("pypi.org",), key="agent")
    """

    mode: Literal["no-network", "public", "allowlist"] = "public"
    hosts: tuple[str, ...] = ()
    key: str = ""


class Healthcheck(Struct):
    """A command that says when a sandbox is ready. Times are seconds; `retries` failures in a row mean that it is not.

    Example: Healthcheck(command="test -e /app/ready", interval=0.5)
    """

    command: str
    interval: float = 5.0
    timeout: float = 30.0
    start_period: float = 0.0
    start_interval: float = 5.0
    retries: int = 3


class Artifact(Struct):
    """A path to copy out. `source` is absolute inside; `destination` is relative to the artifacts directory.

    Example: Artifact(source="/app/report", destination="app/report", exclude=("*.pyc",))
    """

    source: str
    destination: str
    exclude: tuple[str, ...] = ()


class CollectHook(Struct):
    """A command between the agent's end and the copying of artifacts. `timeout`: seconds. `user`: "" for the sandbox's own.

    Example: CollectHook(command="git diff > /logs/artifacts/model.patch", timeout=30.0)
    """

    command: str
    timeout: float = 60.0
    user: str = ""


class Place(Struct):
    """What a sandbox of the task is made of. `files`: (host path, absolute path inside); a directory's contents are merged.
    `network`: of everything before the agent.

    Example: Place(workdir="/app", files=(("/tasks/t/environment/files", "/app"),), environment={"LEVEL": "3"})
    """

    workdir: str
    files: tuple[tuple[str, str], ...] = ()
    environment: dict[str, str] = {}
    memory_mb: int = 0
    base_image: str = ""
    healthcheck: Healthcheck | None = None
    network: Network = Network()

    def spec(self, sandbox_id: str, *, gateway_port: int = 0) -> SandboxSpec:
        """A sandbox of this kind, with no network unless a port is given."""
        spec = SandboxSpec(
            sandbox_id=sandbox_id,
            workdir=self.workdir,
            files=self.files,
            environment=self.environment,
            gateway_port=gateway_port,
        )
        if not self.memory_mb:
            return spec
        return msgspec.structs.replace(spec, limits=msgspec.structs.replace(spec.limits, memory_mb=self.memory_mb))


class Judging(Struct):
    """How a step is judged. `tests`: directories that are laid over one another, the last one on top. `separate`: the sandbox
    of the tests where it is not the agent's. `timeout`: seconds.

    Example: Judging(tests=("/tasks/t/tests",), timeout=60.0, environment={"LEVEL": "3"})
    """

    tests: tuple[str, ...]
    timeout: float = 600.0
    environment: dict[str, str] = {}
    user: str = ""
    network: Network = Network()
    collect: tuple[CollectHook, ...] = ()
    separate: Place | None = None


class Step(Struct):
    """One instruction and how it is judged. `name` is "" in a task without steps of its own. `files_dir`: files that are laid
    into the working directory before it, with a setup.sh that is run (""; none). `solution_dir`: "" when there is no oracle.
    `min_scores`: least values of scores, without which no further step runs. `agent_timeout`: seconds.

    Example: Step(name="scaffold", instruction="Make a module.", judging=Judging(tests=("/tasks/t/steps/scaffold/tests",)))
    """

    instruction: str
    judging: Judging
    name: str = ""
    agent_timeout: float = 600.0
    agent_user: str = ""
    agent_network: Network = Network()
    files_dir: str = ""
    solution_dir: str = ""
    min_scores: dict[str, float] = {}
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()


class Task(Struct):
    """One task, ready to run. `strategy`: how its scores come from those of its steps. `notes`: what it asks for that is
    recorded and not applied.

    Example: Task(task_id="trail-train-d1-k1-00000", path="/tasks/trail-train-d1-k1-00000", place=Place(workdir="/app"),
                  steps=(Step(instruction="start at amber", judging=Judging(tests=("/tasks/.../tests",))),))
    """

    task_id: str
    path: str
    place: Place
    steps: tuple[Step, ...]
    strategy: Literal["mean", "final"] = "mean"
    solution_environment: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        """The plain values of [metadata] as text, for grouping results (depth, difficulty, category...)."""
        return {key: str(value) for key, value in self.metadata.items() if isinstance(value, str | int | float)}

    @property
    def workdir(self) -> str:
        """The working directory inside."""
        return self.place.workdir

    def sandbox_spec(self, sandbox_id: str, *, gateway_port: int = 0) -> SandboxSpec:
        """A sandbox with this task's files, variables and working directory, and no network unless a port is given."""
        return self.place.spec(sandbox_id, gateway_port=gateway_port)
