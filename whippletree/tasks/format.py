"""The schema of task.toml: what of Harbor's format is understood. Anything else is refused, save in [metadata].

Invariants (tests/tasks/test_load_task.py):
- an unknown key outside [metadata] is a TaskError that names file and key;
- a key that asks for what no backend here offers (an image, a GPU, another user) is refused, not ignored.
"""

from __future__ import annotations

from typing import Any

from whippletree.configuration import Config


class Author(Config):
    """One author of a task."""

    name: str
    """Name."""
    email: str = ""
    """E-mail address."""


class Package(Config):
    """[task]: how the task is published."""

    name: str
    """Name in the form org/name."""
    description: str = ""
    """One sentence about it."""
    authors: list[Author] = []
    """Who wrote it."""
    keywords: list[str] = []
    """Words to find it by."""


class AgentTable(Config):
    """[agent]."""

    timeout_sec: float = 600.0
    """Seconds that an agent may take."""


class VerifierTable(Config):
    """[verifier]."""

    timeout_sec: float = 600.0
    """Seconds that tests/test.sh may take."""
    env: dict[str, str] = {}
    """Environment variables of the tests."""


class SolutionTable(Config):
    """[solution]."""

    env: dict[str, str] = {}
    """Environment variables of solution/solve.sh."""


class EnvironmentTable(Config):
    """[environment]."""

    build_timeout_sec: float = 600.0
    """Seconds that an image build may take. Nothing is built here, so it is only recorded."""
    docker_image: str = ""
    """A ready image. Refused: this backend uses the host's root file system."""
    cpus: float = 1.0
    """CPU cores that the task asks for."""
    memory_mb: int = 0
    """Memory in MiB; 0: the run's own limit."""
    memory: str = ""
    """Memory in the older spelling ("2G", "512M")."""
    storage_mb: int = 0
    """Disk in MiB; 0: the run's own limit."""
    storage: str = ""
    """Disk in the older spelling ("10G")."""
    gpus: int = 0
    """GPUs. More than 0 is refused."""
    allow_internet: bool = True
    """Harbor's switch for the network. An attempt reaches the gateway and nothing else, whatever it says."""
    env: dict[str, str] = {}
    """Environment variables of the agent's commands."""


class TaskFile(Config):
    """The whole of task.toml."""

    schema_version: str = "1.1"
    """Version of Harbor's schema; 1.x is understood."""
    version: str = ""
    """The older name of schema_version."""
    task: Package | None = None
    """How the task is published."""
    metadata: dict[str, Any] = {}
    """Anything the author likes."""
    agent: AgentTable = AgentTable()
    """The agent's limits."""
    verifier: VerifierTable = VerifierTable()
    """The verifier's limits and variables."""
    environment: EnvironmentTable = EnvironmentTable()
    """What the task asks of its machine."""
    solution: SolutionTable = SolutionTable()
    """The oracle's variables."""
    source: str = ""
    """The data set that the task came from."""
