"""A task as the rest of the system knows it: what to tell the agent, step by step, in which environment, and how to judge it.

Made by `reading.load_task`. A task without steps of its own is one with a single step that has no name.

Invariants (tests/tasks/test_read_task.py, tests/tasks/test_task_images.py):
- there is at least one step, and the names of steps differ;
- nothing here is read from disk again but the files whose paths are named;
- a task of images can be run once they are made (`Task.on`); then every place has a root file system and a work directory.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import msgspec

from whippletree.errors import TaskError
from whippletree.protocols import SandboxSpec
from whippletree.tasks.images import ImageSource, MadeImage
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
    """A path to copy out. `source` is absolute inside; `destination` is relative to the artifacts directory. Where the work
    directory is an image's to say, `source` may be relative to it, and `destination` "": the source's own.

    Example: Artifact(source="/app/report", destination="app/report", exclude=("*.pyc",))
    """

    source: str
    destination: str
    exclude: tuple[str, ...] = ()

    def below(self, workdir: str) -> Artifact:
        """The same for that work directory."""
        source = posixpath.normpath(posixpath.join(workdir, self.source))
        return msgspec.structs.replace(self, source=source, destination=self.destination or source.lstrip("/"))


class CollectHook(Struct):
    """A command between the agent's end and the copying of artifacts. `timeout`: seconds. `user`: "" for the sandbox's own.

    Example: CollectHook(command="git diff > /logs/artifacts/model.patch", timeout=30.0)
    """

    command: str
    timeout: float = 60.0
    user: str = ""


class Place(Struct):
    """What a sandbox of the task is made of. `files`: (host path, absolute path inside); a directory's contents are merged.
    `network`: of everything before the agent. Limits of 0 are the run's own. `image`: what is to be made; `rootfs` and `user`
    are known once it is, and `workdir` may be.

    Example: Place(workdir="/app", files=(("/tasks/t/environment/files", "/app"),), environment={"LEVEL": "3"})
    """

    workdir: str
    files: tuple[tuple[str, str], ...] = ()
    environment: dict[str, str] = {}
    memory_mb: int = 0
    base_image: str = ""
    healthcheck: Healthcheck | None = None
    network: Network = Network()
    cpus: float = 0.0
    space_mb: int = 0
    image: ImageSource | None = None
    rootfs: str = ""
    user: str = ""

    def on(self, made: MadeImage) -> Self:
        """The same on a root file system that its image was made into, as Docker would run it: the task's values come first,
        and the user is root where the image names none."""
        return msgspec.structs.replace(
            self,
            rootfs=made.rootfs,
            workdir=self.workdir or posixpath.normpath(f"/{made.workdir.strip('/')}"),
            environment=made.environment | self.environment,
            user=made.user or "root",
        )

    def spec(self, sandbox_id: str, *, gateway_port: int = 0) -> SandboxSpec:
        """A sandbox of this kind, with no network unless a port is given."""
        spec = SandboxSpec(
            sandbox_id=sandbox_id,
            workdir=self.workdir,
            files=self.files,
            environment=self.environment,
            gateway_port=gateway_port,
            rootfs=self.rootfs,
            user=self.user,
        )
        limits = msgspec.structs.replace(
            spec.limits, memory_mb=self.memory_mb or spec.limits.memory_mb, cpus=self.cpus, space_mb=self.space_mb
        )
        return msgspec.structs.replace(spec, limits=limits)


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

    @property
    def images(self) -> tuple[ImageSource, ...]:
        """The images that its sandboxes are made of, each once; the agent's first."""
        return tuple(dict.fromkeys(place.image for place in self._places() if place.image is not None))

    def _places(self) -> Iterator[Place]:
        yield self.place
        yield from (step.judging.separate for step in self.steps if step.judging.separate is not None)

    def on(self, made: Mapping[ImageSource, MadeImage]) -> Self:
        """The task on its images, all of which were made. Raises TaskError where that leaves it without a work directory, or
        with two artifacts in one place."""
        place = self._on(self.place, made)
        steps = tuple(self._step_on(step, place, made) for step in self.steps)
        return msgspec.structs.replace(self, place=place, steps=steps)

    def _on(self, place: Place, made: Mapping[ImageSource, MadeImage], workdir: str = "") -> Place:
        found = place.on(made[place.image]) if place.image is not None else place
        if found.workdir in ("", "/") and workdir:
            return msgspec.structs.replace(found, workdir=workdir)
        if found.image is not None and found.workdir == "/":
            raise TaskError(
                f"{self.path}: its image names no work directory of its own", "set environment.workdir, such as /app"
            )
        return found

    def _step_on(self, step: Step, place: Place, made: Mapping[ImageSource, MadeImage]) -> Step:
        judging = step.judging
        if judging.separate is not None:
            judging = msgspec.structs.replace(judging, separate=self._on(judging.separate, made, place.workdir))
        artifacts = tuple(artifact.below(place.workdir) for artifact in step.artifacts)
        for number, artifact in enumerate(artifacts):
            if any(overlap(artifact.destination, other.destination) for other in artifacts[:number]):
                raise TaskError(f"{self.path}: two artifacts would lie in {artifact.destination}", "give another destination")
        return msgspec.structs.replace(step, judging=judging, artifacts=artifacts)

    def sandbox_spec(self, sandbox_id: str, *, gateway_port: int = 0) -> SandboxSpec:
        """A sandbox with this task's files, variables and working directory, and no network unless a port is given."""
        return self.place.spec(sandbox_id, gateway_port=gateway_port)


def overlap(one: str, other: str) -> bool:
    """Whether two paths are the same, or one lies below the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
