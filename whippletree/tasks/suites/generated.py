"""The generated families by the name that a run file and the command line give them.

Invariants (tests/tasks/test_suites_generated.py): every family writes training and held-out tasks that load, and the same bytes
each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from whippletree.configuration import Config
from whippletree.errors import ConfigurationError
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.suites.config import DataFamily, SearchFamily, ShellFamily
from whippletree.tasks.suites.data.suite import data_suite
from whippletree.tasks.suites.search.suite import search_suite
from whippletree.tasks.suites.shell.families import shell_suite
from whippletree.tasks.trail import write_tasks

FAMILIES: Mapping[str, tuple[type[Config], str]] = {
    "trail": (TrailFamily, "follow the trail: files name the next file, the last one holds a code"),
    "data": (DataFamily, "questions over small CSV files and SQLite databases, in four grades"),
    "search": (SearchFamily, "questions of one to four steps over a corpus with a search tool"),
    "shell": (ShellFamily, "shell tasks in six families and four grades"),
}


def write_family(kind: str, family: Config, directory: Path) -> tuple[list[Path], list[Path]]:
    """Write a family's tasks to directory/train and directory/heldout; returns their paths. Raises ConfigurationError,
    TaskError where others are."""
    match family:
        case TrailFamily():
            return write_tasks(directory, family)
        case ShellFamily():
            return shell_suite(family).write(directory)
        case SearchFamily():
            return search_suite(family).write(directory)
        case DataFamily():
            return data_suite(family).write(directory)
    raise ConfigurationError(f"{kind}: no generated family", f"one of {', '.join(FAMILIES)}")
