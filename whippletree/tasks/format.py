"""The schema of task.toml, versions 1.0 to 1.4 of Harbor's format, as it is written down. What is made of it is in `reading`.

Invariants (tests/tasks/test_read_task.py):
- an unknown key outside [metadata] is a problem that names file, key and the nearest known one;
- each key is documented as applied, recorded or refused, and docs/tasks.md lists it so.
"""

from __future__ import annotations

from typing import Any, Literal

from whippletree.configuration import Config

VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
NetworkMode = Literal["no-network", "public", "allowlist"]
User = str | int


class Author(Config):
    """One author of a task."""

    name: str
    """Name. Recorded."""
    email: str | None = None
    """E-mail address. Recorded."""


class Package(Config):
    """[task]: how the task is published."""

    name: str
    """Name in the form org/name. Recorded."""
    version: str | None = None
    """Version of the package. Recorded."""
    description: str = ""
    """One sentence about it. Recorded."""
    authors: list[Author] = []
    """Who wrote it. Recorded."""
    keywords: list[str] = []
    """Words to find it by. Recorded."""


class HealthcheckTable(Config):
    """[environment.healthcheck] and [steps.healthcheck]."""

    command: str
    """Shell command; status 0 means healthy. Applied."""
    interval_sec: float = 5.0
    """Seconds between two checks. Applied."""
    timeout_sec: float = 30.0
    """Seconds that one check may take. Applied."""
    start_period_sec: float = 0.0
    """Seconds at the start in which a failure does not count. Applied."""
    start_interval_sec: float = 5.0
    """Seconds between two checks in the start period. Applied."""
    retries: int = 3
    """Failures in a row after which the environment is not healthy. Applied."""


class ArtifactTable(Config):
    """One entry of `artifacts`: a path that is copied out of the sandbox after the agent has ended."""

    source: str
    """Path inside; relative to the working directory, or absolute. Applied."""
    destination: str | None = None
    """Path below the attempt's artifacts directory; left out: the source's own. Applied."""
    exclude: list[str] = []
    """Patterns of names to leave out of a directory. Applied."""
    service: str | None = None
    """Service of a compose file. Refused unless "main"."""


class CollectTable(Config):
    """[[verifier.collect]]: a command between the agent's end and the copying of artifacts."""

    command: str
    """Shell command, run in the working directory. Applied."""
    service: str = "main"
    """Service of a compose file. Refused unless "main"."""
    timeout_sec: float = 60.0
    """Seconds that it may take. Applied."""
    user: User | None = None
    """User to run it as; left out: the sandbox's own. Applied."""


class AgentTable(Config):
    """[agent] and [steps.agent]."""

    timeout_sec: float | None = None
    """Seconds that an agent may take; left out: the task's, and 600 where that says nothing. Applied."""
    user: User | None = None
    """User to run the agent as; left out: the sandbox's own. Applied."""
    network_mode: NetworkMode | None = None
    """Network of the agent phase, as far as the run grants it. Applied."""
    allowed_hosts: list[str] | None = None
    """Hosts for network_mode = "allowlist", with or without a port. Applied."""


class SolutionTable(Config):
    """[solution]."""

    env: dict[str, str] = {}
    """Environment variables of solution/solve.sh. Applied."""


class TpuTable(Config):
    """[environment.tpu]."""

    type: str
    """Kind of TPU. Refused."""
    topology: str
    """Shape of the slice. Refused."""


class McpServerTable(Config):
    """[[environment.mcp_servers]]."""

    name: str
    """Name of the server. Refused."""
    transport: str = "sse"
    """How it is spoken to. Refused."""
    url: str | None = None
    """Its address. Refused."""
    command: str | None = None
    """Its program. Refused."""
    args: list[str] = []
    """Its program's arguments. Refused."""


class EnvironmentTable(Config):
    """[environment], and [verifier.environment] of a separate verifier."""

    build_timeout_sec: float = 600.0
    """Seconds that the making of the image may take. Applied, where the environment is an image."""
    docker_image: str | None = None
    """A ready image; comes before the Dockerfile. Applied by backends that take images, refused by others."""
    os: str = "linux"
    """Operating system. Anything but "linux" is refused."""
    cpus: float | None = None
    """CPU cores' worth of time. Applied, where a cgroup can be made."""
    memory_mb: int | None = None
    """Memory in MiB; left out: the run's own limit. Applied."""
    memory: str | None = None
    """Memory in the older spelling ("2G", "512M"). Applied."""
    storage_mb: int | None = None
    """Size in MiB of each file system that can be written to; left out: the run's own. Applied by backends that have some."""
    storage: str | None = None
    """The same in the older spelling ("10G"). Applied by backends that have some."""
    gpus: int | None = None
    """GPUs. More than 0 is refused."""
    gpu_types: list[str] | None = None
    """Kinds of GPU. Refused unless empty."""
    tpu: TpuTable | None = None
    """A TPU slice. Refused."""
    mcp_servers: list[McpServerTable] = []
    """MCP servers for the agent. Refused unless empty."""
    skills_dir: str | None = None
    """Directory of skills for the agent. Refused."""
    env: dict[str, str] = {}
    """Environment variables of everything that runs inside. Applied."""
    healthcheck: HealthcheckTable | None = None
    """A command that says when the environment is ready. Applied."""
    workdir: str | None = None
    """Working directory; comes before the Dockerfile's. Applied."""
    network_mode: NetworkMode | None = None
    """Network before the agent, and of every phase that names none, as far as the run grants it. Applied."""
    allowed_hosts: list[str] | None = None
    """Hosts for network_mode = "allowlist", with or without a port. Applied."""
    allow_internet: bool | None = None
    """Network in the older spelling. Applied."""


class VerifierTable(Config):
    """[verifier] and [steps.verifier]."""

    timeout_sec: float | None = None
    """Seconds that tests/test.sh may take; left out: the task's, and 600 where that says nothing. Applied."""
    env: dict[str, str] = {}
    """Environment variables of the tests. Applied."""
    user: User | None = None
    """User to run the tests as; left out: the sandbox's own. Applied."""
    environment_mode: Literal["shared", "separate"] | None = None
    """Whether the tests run in the agent's sandbox or in one of their own. Applied."""
    environment: EnvironmentTable | None = None
    """What the separate verifier's sandbox is made of; left out: as the agent's. Applied."""
    collect: list[CollectTable] = []
    """Commands between the agent's end and the copying of artifacts. Applied."""
    network_mode: NetworkMode | None = None
    """Network of the tests, as far as the run grants it. Applied."""
    allowed_hosts: list[str] | None = None
    """Hosts for network_mode = "allowlist", with or without a port. Applied."""


class StepTable(Config):
    """[[steps]]: one step of a task with several."""

    name: str
    """Name of the step and of its directory below steps/. Applied."""
    agent: AgentTable = AgentTable()
    """The agent in this step; what is left out is the task's. Applied."""
    verifier: VerifierTable = VerifierTable()
    """The verifier of this step; what is left out is the task's. Applied."""
    min_reward: float | dict[str, float] | None = None
    """Least score named "reward", or least of each named score; below it no further step runs. Applied."""
    healthcheck: HealthcheckTable | None = None
    """A check after the step's set-up. Applied."""
    artifacts: list[str | ArtifactTable] = []
    """Paths copied out after this step, beside the task's. Applied."""


class TaskFile(Config):
    """The whole of task.toml."""

    schema_version: str = VERSIONS[-1]
    """Version of Harbor's schema; 1.0 to 1.4 are understood. Applied."""
    version: str | None = None
    """The older name of schema_version. Applied."""
    task: Package | None = None
    """How the task is published. Recorded."""
    metadata: dict[str, Any] = {}
    """Anything the author likes; plain values label results. Applied."""
    agent: AgentTable = AgentTable()
    """The agent's limits. Applied."""
    verifier: VerifierTable = VerifierTable()
    """The verifier's limits, variables and place. Applied."""
    environment: EnvironmentTable = EnvironmentTable()
    """What the task asks of its machine. Applied."""
    solution: SolutionTable = SolutionTable()
    """The oracle's variables. Applied."""
    source: str | None = None
    """The data set that the task came from. Recorded."""
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    """How a task's scores come from those of its steps; left out: "mean". Applied."""
    multi_step_reward_mode: str | None = None
    """A spelling before 1.3. Recorded."""
    steps: list[StepTable] | None = None
    """The steps of a task with several, in order. Applied."""
    artifacts: list[str | ArtifactTable] = []
    """Paths copied out after the agent has ended. Applied."""
