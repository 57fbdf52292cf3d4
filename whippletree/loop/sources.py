"""Sources of tasks: generated families and directories, each cut into training and held-out tasks.

Invariants (tests/loop/test_sources.py):
- no task is in both sets, whatever names lead to it;
- writing the tasks of a family twice gives the same directories.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from whippletree.configuration import Config
from whippletree.errors import ConfigurationError
from whippletree.loop.evaluation import Heldout
from whippletree.loop.groups import SourceTasks
from whippletree.tasks import load_task
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.images import HOSTS, Backing
from whippletree.tasks.reading import no_tasks, tasks_in
from whippletree.tasks.suites.config import DataFamily, SearchFamily, ShellFamily
from whippletree.tasks.suites.generated import write_family


class TrailTasks(Config, tag="trail", tag_field="kind"):
    """The generated family "follow the trail" (docs/tasks.md)."""

    family: TrailFamily = TrailFamily()
    """How many tasks, how deep, how many decoys."""


class ShellTasks(Config, tag="shell", tag_field="kind"):
    """The shell suite (docs/task-suites.md)."""

    family: ShellFamily = ShellFamily()
    """How many tasks, about what, how hard."""


class DataTasks(Config, tag="data", tag_field="kind"):
    """The data-analysis suite (docs/task-suites.md)."""

    family: DataFamily = DataFamily()
    """How many tasks, in which form, how hard."""


class SearchTasks(Config, tag="search", tag_field="kind"):
    """The search suite (docs/task-suites.md)."""

    family: SearchFamily = SearchFamily()
    """How many tasks, of how many steps, over how many corpora."""


class DirectoryTasks(Config, tag="directory", tag_field="kind"):
    """Harbor task directories on disk."""

    train: str = ""
    """Directory whose sub-directories are the training tasks; empty: none, where none are trained."""
    heldout: str = ""
    """Directory whose sub-directories are the held-out tasks; must not be the same. Empty: none, and nothing is evaluated."""


GeneratedTasks = TrailTasks | ShellTasks | DataTasks | SearchTasks
TaskSet = GeneratedTasks | DirectoryTasks


def task_directories(tasks: TaskSet, name: str, run_directory: Path) -> tuple[list[Path], list[Path]]:
    """Training and held-out task directories of a source; generated ones are written below the run directory. Raises
    ConfigurationError."""
    if isinstance(tasks, GeneratedTasks):
        root = run_directory / "tasks" / name
        write_family(name, tasks.family, root)
        train, heldout = str(root / "train"), str(root / "heldout")
    else:
        train, heldout = tasks.train, tasks.heldout
        if not train and not heldout:
            raise ConfigurationError(f"source {name} has no tasks", "name a directory as its tasks.train or tasks.heldout")
        if train and heldout and Path(train).resolve() == Path(heldout).resolve():
            raise ConfigurationError(f"source {name}: train and heldout are both {train}", "give two directories")
    found, held = _tasks_in(train, name), _tasks_in(heldout, name)
    if both := set(found) & set(held):
        raise ConfigurationError(f"source {name}: {min(both)} is in {train} and in {heldout}", "keep each task in one of them")
    return found, held


def _tasks_in(directory: str, name: str) -> list[Path]:
    found = sorted(path.resolve() for path in tasks_in(Path(directory))) if directory else []
    if directory and not found:
        wrong = no_tasks(Path(directory))
        raise ConfigurationError(f"source {name}: {wrong.cause}", wrong.next_step)
    return found


def resolve(
    name: str,
    tasks: TaskSet,
    harness: str,
    share: float,
    run_directory: Path,
    *,
    variables: Mapping[str, str] | None = None,
    backing: Backing = HOSTS,
) -> tuple[SourceTasks, list[Heldout]]:
    """What the loop needs to know of a source. Every task is loaded once here, so that a broken one stops the run now.
    `variables`: for the ${NAME}s of its tasks; `backing`: what their sandboxes can be."""
    train, heldout = task_directories(tasks, name, run_directory)
    loaded = {path: load_task(path, variables, backing) for path in [*train, *heldout]}
    source = SourceTasks(
        name=name,
        tasks=tuple((path.name, str(path)) for path in train),
        harness=harness,
        share=share,
        labels={path.name: loaded[path].labels for path in train},
    )
    held = [
        Heldout(source=name, task_id=path.name, task_path=str(path), harness=harness, labels=loaded[path].labels)
        for path in heldout
    ]
    return source, held
