"""Reads a Harbor task directory: task.toml, instruction.md, environment/, tests/, solution/, steps/.

    task.toml ─► keys known? types right? ─► asks for nothing that is not run here ─► files there? ─► Task
    every problem on the way is kept, so that one look shows them all

Invariants (tests/tasks/test_read_task.py):
- a task that loads can be run on the sandboxes that it was read for: every file it needs exists, and nothing that it asks for
  is silently left out;
- a problem names the file, and the key or line, that is wrong, and what to do;
- variables come from the given mapping only.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whippletree.configuration import convert
from whippletree.errors import ConfigurationError, TaskError
from whippletree.tasks.dockerfile import Environment, NeedsBuild, read_dockerfile
from whippletree.tasks.format import (
    VERSIONS,
    AgentTable,
    ArtifactTable,
    CollectTable,
    EnvironmentTable,
    HealthcheckTable,
    StepTable,
    TaskFile,
    User,
    VerifierTable,
)
from whippletree.tasks.images import HOSTS, NEEDS_BUILD, Backing, BuiltImage, NamedImage
from whippletree.tasks.keys import Problem, table_problems
from whippletree.tasks.refusals import notes, refusals
from whippletree.tasks.task import Artifact, CollectHook, Healthcheck, Judging, Network, Place, Step, Task, overlap
from whippletree.tasks.variables import MissingVariable, resolve
from whippletree.types import Struct

DEFAULT_TIMEOUT = 600.0  # seconds for an agent or a verifier of which the task says nothing
CONVENTION = "/logs/artifacts"  # copied out, where it is there, for a task that has anything to copy
_MEBIBYTES = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
_STEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Reading(Struct):
    """What a look at a task directory gave: the task, or all that is wrong with it.

    Example: Reading(path="/tasks/t", problems=(Problem("/tasks/t/instruction.md is empty", "say what to do"),))
    """

    path: str
    task: Task | None = None
    problems: tuple[Problem, ...] = ()


def tasks_in(directory: Path) -> list[Path]:
    """The tasks of a directory, each a directory of its own with a task.toml, by name."""
    return sorted(path.parent for path in directory.glob("*/task.toml"))


def no_tasks(directory: Path) -> ConfigurationError:
    """What is wrong with a directory that holds no task: its tasks may lie one level below."""
    below = sorted({path.parent.parent for path in directory.glob("*/*/task.toml")})
    step = f"they are in {', '.join(map(str, below))}" if below else "each sub-directory with a task.toml is a task"
    return ConfigurationError(f"no task in {directory}", step)


def load_task(path: Path, variables: Mapping[str, str] | None = None, backing: Backing = HOSTS) -> Task:
    """Read a task directory, with `variables` for its `${NAME}`s, for sandboxes of that kind (left out: without images).
    Raises TaskError with the first problem."""
    reading = read_task(path, variables, backing)
    if reading.task is not None:
        return reading.task
    first, *others = reading.problems
    more = f"; {len(others)} more: see `whippletree tasks validate {path}`" if others else ""
    raise TaskError(first.cause, first.next_step + more)


def read_task(path: Path, variables: Mapping[str, str] | None = None, backing: Backing = HOSTS) -> Reading:
    """Read a task directory, with every problem that it has. Does not raise. See `load_task`."""
    path = Path(path).absolute()
    if not path.is_dir():
        return Reading(
            path=str(path), problems=(Problem(f"{path} is not a directory", "give the directory that holds task.toml"),)
        )
    if not (path / "task.toml").exists() and (tasks := tasks_in(path)):
        cause = f"{path} is no task, it holds {len(tasks)}"
        return Reading(path=str(path), problems=(Problem(cause, f"name one of them, for example {tasks[0]}"),))
    reader = _Reader(path, variables or {}, backing)
    task = reader.read()
    problems = tuple(reader.problems)
    return Reading(path=str(path), task=None if problems else task, problems=problems)


class _Reader:
    """One look at one directory. `problems` grows while it reads; what is made beside a problem is not used."""

    def __init__(self, path: Path, variables: Mapping[str, str], backing: Backing) -> None:
        self.path = path
        self.toml = path / "task.toml"
        self.problems: list[Problem] = []
        self._variables = variables
        self._backing = backing

    def read(self) -> Task | None:
        """The task, where there is enough of it to make one."""
        settings = self._settings()
        build = self._environment(self.path / "environment", settings.environment if settings else EnvironmentTable())
        if settings is None:
            self._single_files()
            return None
        place = self._place(settings.environment, build, "environment")
        steps = tuple(self._steps(settings, place))
        return Task(
            task_id=self.path.name,
            path=str(self.path),
            place=place,
            steps=steps,
            strategy=settings.multi_step_reward_strategy or "mean",
            solution_environment=self._filled(settings.solution.env, "solution.env"),
            metadata=settings.metadata,
            notes=tuple(notes(settings, self._backing)),
        )

    def _found(self, cause: str, next_step: str) -> None:
        self.problems.append(Problem(cause, next_step))

    def _key(self, key: str, value: object, next_step: str) -> None:
        self._found(f"{self.toml}: {key} = {value}", next_step)

    # --- files -------------------------------------------------------------------------------------------------------

    def _text(self, path: Path) -> str | None:
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            self._found(f"{path}: cannot read it: {error.strerror}", "see docs/tasks.md for the files of a task")
        except UnicodeDecodeError as error:
            self._found(f"{path}: not UTF-8 text: {error}", "save it as UTF-8")
        return None

    def _settings(self) -> TaskFile | None:
        text = self._text(self.toml)
        if text is None:
            return None
        try:
            data: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            self._found(f"{self.toml}: not valid TOML: {error}", "mend the line it names")
            return None
        version = str(data.get("version") or data.get("schema_version") or VERSIONS[-1])
        if version not in VERSIONS:
            self._found(f"{self.toml}: schema_version {version} is not known", f"this release reads {', '.join(VERSIONS)}")
        if found := list(table_problems(TaskFile, data, str(self.toml))):
            self.problems += found
            return None
        settings = convert(TaskFile, data, str(self.toml))
        self.problems += refusals(settings, str(self.toml), self._backing)
        return settings

    def _environment(self, directory: Path, table: EnvironmentTable) -> Environment:
        for name in ("docker-compose.yaml", "docker-compose.yml"):
            if (directory / name).exists():
                self._found(f"{directory / name}: several services are not supported", "put everything into one environment")
        return self._dockerfile(directory / "Dockerfile", table)

    def _dockerfile(self, path: Path, table: EnvironmentTable) -> Environment:
        """What a Dockerfile says, or the image that comes of it or before it."""
        wanted = self._backing.images
        if table.docker_image and wanted != "never":
            image = NamedImage(name=table.docker_image, seconds=table.build_timeout_sec)
            return Environment(base_image=table.docker_image, workdir="", image=image)
        built = Environment(
            workdir="", image=BuiltImage(context=str(path.parent), file=path.name, seconds=table.build_timeout_sec)
        )
        try:
            found = read_dockerfile(path)
        except NeedsBuild as error:
            if wanted != "never":
                return built
            self._found(error.cause, self._backing.refusal if error.next_step == NEEDS_BUILD else error.next_step)
        except TaskError as error:
            self._found(error.cause, error.next_step)
        else:
            return built if wanted == "always" else found
        return Environment()

    def _instruction(self, path: Path) -> str:
        text = self._text(path)
        if text is not None and not text.strip():
            self._found(f"{path} is empty", "say what the agent is to do")
        return (text or "").strip()

    def _single_files(self) -> None:
        """What a task without steps needs, whatever task.toml says: looked at where that cannot be read."""
        if not (self.path / "steps").is_dir():
            self._instruction(self.path / "instruction.md")
            self._tests((self.path / "tests",))

    def _tests(self, directories: tuple[Path, ...]) -> tuple[str, ...]:
        if not any((directory / "test.sh").is_file() for directory in directories):
            self._found(f"{directories[-1] / 'test.sh'} is missing", "write the test that puts a reward into reward.txt")
        return tuple(str(directory) for directory in directories if directory.is_dir())

    # --- parts -------------------------------------------------------------------------------------------------------

    def _place(self, table: EnvironmentTable, build: Environment, key: str) -> Place:
        workdir = posixpath.normpath(table.workdir) if table.workdir else build.workdir
        late = not workdir  # an image says where
        if not (late or workdir.startswith("/")) or ".." in (table.workdir or "").split("/"):
            self._key(f"{key}.workdir", table.workdir, "give an absolute path without ..")
        return Place(
            workdir=workdir,
            files=tuple(build.files),
            environment=build.variables | self._filled(table.env, f"{key}.env"),
            memory_mb=self._mebibytes(table.memory_mb, table.memory, f"{key}.memory"),
            base_image=build.base_image,
            healthcheck=_healthcheck(table.healthcheck),
            network=_network((key, table)),
            cpus=table.cpus or 0.0,
            space_mb=self._mebibytes(table.storage_mb, table.storage, f"{key}.storage"),
            image=build.image,
        )

    def _mebibytes(self, plain: int | None, text: str | None, key: str) -> int:
        """MiB that the task asks for, in either spelling; 0 when it does not say. `key`: of the older one."""
        if text is None:
            return plain or 0
        number, unit = text[:-1], text[-1:].upper()
        try:
            found = int(float(number) * _MEBIBYTES[unit])
        except (ValueError, KeyError, OverflowError):
            self._key(key, text, 'write it like "2G" or "512M"')
            return 0
        if plain is not None and plain != found:
            self._key(key, text, f"it contradicts {key.rpartition('.')[2]}_mb = {plain}: leave one out")
        return found

    def _filled(self, table: dict[str, str], key: str) -> dict[str, str]:
        filled = {}
        for name, value in table.items():
            try:
                filled[name] = resolve(value, self._variables)
            except MissingVariable as error:
                self._key(
                    f"{key}.{name}",
                    f"{value}: {error}",
                    "give it in control.variables of the run file, or write ${NAME:-default}; the host's are not passed in",
                )
        return filled

    def _steps(self, settings: TaskFile, place: Place) -> Iterator[Step]:
        if not settings.steps:
            yield self._step(settings, StepTable(name=""), place, self.path, (self.path / "tests",))
            return
        names = [table.name for table in settings.steps]
        for number, table in enumerate(settings.steps):
            directory = self.path / "steps" / table.name
            if not _STEP_NAME.fullmatch(table.name) or names.index(table.name) != number:
                self._key(f"steps.{number}.name", repr(table.name), "give each step a name of letters, digits, dots and dashes")
            else:
                yield self._step(settings, table, place, directory, (self.path / "tests", directory / "tests"))

    def _step(self, settings: TaskFile, table: StepTable, place: Place, directory: Path, tests: tuple[Path, ...]) -> Step:
        files = directory / "workdir"
        limits = table.min_reward if table.min_reward is not None else {}
        judging = self._judging(settings, table, place, self._tests(tests))
        artifacts = [*settings.artifacts, *table.artifacts]
        if artifacts or judging.collect or judging.separate:
            artifacts = [CONVENTION, *(entry for entry in artifacts if entry != CONVENTION)]
        return Step(
            name=table.name,
            instruction=self._instruction(directory / "instruction.md"),
            judging=judging,
            agent_timeout=_first(table.agent.timeout_sec, settings.agent.timeout_sec),
            agent_user=_user(table.agent.user, settings.agent.user),
            agent_network=_network(
                (f"steps.{table.name}.agent", table.agent), ("agent", settings.agent), ("environment", settings.environment)
            ),
            files_dir=str(files) if table.name and files.is_dir() else "",
            solution_dir=str(directory / "solution") if (directory / "solution" / "solve.sh").is_file() else "",
            min_scores=limits if isinstance(limits, dict) else {"reward": float(limits)},
            healthcheck=_healthcheck(table.healthcheck),
            artifacts=tuple(self._artifacts(artifacts, place.workdir)),
        )

    def _judging(self, settings: TaskFile, step: StepTable, place: Place, tests: tuple[str, ...]) -> Judging:
        table = step.verifier
        above = settings.verifier
        box = table.environment or above.environment
        mode = table.environment_mode or above.environment_mode or ("separate" if box else "shared")
        base = ("verifier.environment", box) if mode == "separate" and box else ("environment", settings.environment)
        return Judging(
            tests=tests,
            timeout=_first(table.timeout_sec, above.timeout_sec),
            environment=self._filled(above.env | table.env, "verifier.env"),
            user=_user(table.user, above.user),
            network=_network((f"steps.{step.name}.verifier", table), ("verifier", above), base),
            collect=tuple(_hook(hook) for hook in table.collect or above.collect),
            separate=self._separate(box, place) if mode == "separate" else None,
        )

    def _separate(self, box: EnvironmentTable | None, place: Place) -> Place:
        """A separate verifier's place: of tests/Dockerfile if there is one, else empty, or as the agent's without a table."""
        recipe = self.path / "tests" / "Dockerfile"
        if box is None and not recipe.exists():
            return place
        table = box or EnvironmentTable()
        ready = bool(table.docker_image) and self._backing.images != "never"
        build = self._dockerfile(recipe, table) if ready or recipe.exists() else Environment(workdir=place.workdir)
        build.files = [(host, inside) for host, inside in build.files if not f"{inside}/".startswith("/tests/")]
        return self._place(table, build, "verifier.environment")

    def _artifacts(self, entries: list[str | ArtifactTable], workdir: str) -> Iterator[Artifact]:
        seen: set[str] = set()
        for entry in entries:
            table = ArtifactTable(source=entry) if isinstance(entry, str) else entry
            source = posixpath.normpath(posixpath.join(workdir, table.source))
            destination = posixpath.normpath(table.destination or source.lstrip("/"))
            late = not table.destination and not source.startswith("/")  # an image says where
            if ".." in table.source.split("/") or source in ("/", "."):
                self._key("artifacts.source", table.source, "give a path inside without ..")
            elif destination.startswith(("/", "..")) or destination in (".", "manifest.json"):
                self._key("artifacts.destination", table.destination, "give a relative path without .., not manifest.json")
            elif any(overlap(destination, other) for other in seen):
                self._key("artifacts", destination, "two artifacts would lie in one place: give another destination")
            else:
                seen.add(destination)
                yield Artifact(source=source, destination="" if late else destination, exclude=tuple(table.exclude))


def _first(*seconds: float | None) -> float:
    return next((value for value in seconds if value is not None), DEFAULT_TIMEOUT)


def _user(*users: User | None) -> str:
    return next((str(user) for user in users if user is not None), "")


def _network(*tables: tuple[str, AgentTable | VerifierTable | EnvironmentTable]) -> Network:
    """What the first of these says that says anything. Each with its key."""
    for key, table in tables:
        if table.network_mode is not None:
            return Network(mode=table.network_mode, hosts=tuple(table.allowed_hosts or ()), key=f"{key}.network_mode")
        if isinstance(table, EnvironmentTable) and table.allow_internet is not None:
            return Network(mode="public" if table.allow_internet else "no-network", key=f"{key}.allow_internet")
    return Network()


def _healthcheck(table: HealthcheckTable | None) -> Healthcheck | None:
    if table is None:
        return None
    return Healthcheck(
        command=table.command,
        interval=table.interval_sec,
        timeout=table.timeout_sec,
        start_period=table.start_period_sec,
        start_interval=table.start_interval_sec,
        retries=table.retries,
    )


def _hook(table: CollectTable) -> CollectHook:
    return CollectHook(command=table.command, timeout=table.timeout_sec, user=_user(table.user))
