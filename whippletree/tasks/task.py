"""A Harbor task directory, read and checked once: task.toml, instruction.md, environment/, tests/, solution/.

Invariants (tests/tasks/test_load_task.py):
- a task that loads can be run: every file it needs exists, and nothing that it asks for is silently left out;
- an error names the file, and the key or line, that is wrong.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from whippletree.configuration import convert
from whippletree.errors import ConfigurationError, TaskError
from whippletree.protocols import SandboxSpec
from whippletree.tasks.dockerfile import NEEDS_BUILD, Environment, read_dockerfile
from whippletree.tasks.format import EnvironmentTable, TaskFile
from whippletree.types import Struct

_MEBIBYTES = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}


class Task(Struct):
    """One task, ready to run. Timeouts are seconds. `files`: (host path, absolute path inside); a directory's contents are
    merged into the path inside. `solution_dir` is "" when there is no oracle.

    Example: Task(task_id="trail-train-d1-k1-00000", path="/tasks/trail-train-d1-k1-00000",
                  instruction="start at amber and submit the code", workdir="/app", tests_dir="/tasks/.../tests")
    """

    task_id: str
    path: str
    instruction: str
    workdir: str
    tests_dir: str
    solution_dir: str = ""
    base_image: str = ""
    files: tuple[tuple[str, str], ...] = ()
    environment: dict[str, str] = {}
    verifier_environment: dict[str, str] = {}
    solution_environment: dict[str, str] = {}
    agent_timeout: float = 600.0
    verifier_timeout: float = 600.0
    memory_mb: int = 0
    metadata: dict[str, Any] = {}

    @property
    def labels(self) -> dict[str, str]:
        """The plain values of [metadata] as text, for grouping results (depth, difficulty, category...)."""
        return {key: str(value) for key, value in self.metadata.items() if isinstance(value, str | int | float)}

    def sandbox_spec(self, sandbox_id: str, *, gateway_port: int = 0) -> SandboxSpec:
        """A sandbox with this task's files, variables and working directory, and no network unless a port is given."""
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


def load_task(path: Path) -> Task:
    """Read a task directory. Raises TaskError with file and key (or line) where it cannot be used."""
    path = Path(path).absolute()
    if not path.is_dir():
        raise TaskError(f"{path} is not a directory", "give the directory that holds task.toml")
    settings = _read_settings(path / "task.toml")
    instruction = _read_text(path / "instruction.md").strip()
    if not instruction:
        raise TaskError(f"{path / 'instruction.md'} is empty", "say what the agent is to do")
    if not (path / "tests" / "test.sh").is_file():
        raise TaskError(f"{path / 'tests' / 'test.sh'} is missing", "write the test that puts a reward into reward.txt")
    environment = _read_environment(path / "environment")
    oracle = (path / "solution" / "solve.sh").is_file()
    return Task(
        task_id=path.name,
        path=str(path),
        instruction=instruction,
        workdir=environment.workdir,
        tests_dir=str(path / "tests"),
        solution_dir=str(path / "solution") if oracle else "",
        base_image=environment.base_image,
        files=tuple(environment.files),
        environment=environment.variables | settings.environment.env,
        verifier_environment=settings.verifier.env,
        solution_environment=settings.solution.env,
        agent_timeout=settings.agent.timeout_sec,
        verifier_timeout=settings.verifier.timeout_sec,
        memory_mb=_memory(settings.environment, path / "task.toml"),
        metadata=settings.metadata,
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(f"{path}: cannot read it: {error.strerror}", "see docs/tasks.md for the files of a task") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 text: {error}", "save it as UTF-8") from error


def _read_settings(path: Path) -> TaskFile:
    text = _read_text(path)
    try:
        settings = convert(TaskFile, tomllib.loads(text), str(path))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{path}: not valid TOML: {error}", "mend the line it names") from error
    except ConfigurationError as error:
        raise TaskError(error.cause, f"{error.next_step}; free keys belong into [metadata]") from error
    version = settings.version or settings.schema_version
    if version.split(".")[0] != "1":
        raise TaskError(f"{path}: schema_version {version} is not known", "this release reads 1.x")
    _refuse(settings, path)
    return settings


def _refuse(settings: TaskFile, path: Path) -> None:
    """Raise TaskError at the first key that asks for what no backend here offers, or that cannot be meant."""
    if settings.environment.docker_image:
        raise TaskError(f"{path}: environment.docker_image = {settings.environment.docker_image}", NEEDS_BUILD)
    if settings.environment.gpus:
        raise TaskError(f"{path}: environment.gpus = {settings.environment.gpus}", "no backend here gives a sandbox a GPU")
    for key, seconds in (("agent", settings.agent.timeout_sec), ("verifier", settings.verifier.timeout_sec)):
        if not 0.0 < seconds < float("inf"):
            raise TaskError(f"{path}: {key}.timeout_sec = {seconds}", "give a positive number of seconds")
    for table in ("environment", "verifier", "solution"):
        variables: dict[str, str] = getattr(settings, table).env
        for name, value in variables.items():
            if "${" in value:
                raise TaskError(
                    f"{path}: {table}.env.{name} = {value}", "variables of the host are not passed in: write it out"
                )


def _read_environment(directory: Path) -> Environment:
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (directory / name).exists():
            raise TaskError(f"{directory / name}: several services are not supported", NEEDS_BUILD)
    return read_dockerfile(directory / "Dockerfile")


def _memory(table: EnvironmentTable, path: Path) -> int:
    """MiB that the task asks for; 0 when it does not say."""
    if not table.memory:
        return table.memory_mb
    number, unit = table.memory[:-1], table.memory[-1:].upper()
    try:
        return int(float(number) * _MEBIBYTES[unit])
    except (ValueError, KeyError) as error:
        raise TaskError(f"{path}: environment.memory = {table.memory}", 'write it like "2G" or "512M"') from error
