"""Every problem of a table at once: unknown keys, missing ones, wrong types.

`configuration.convert` stops at the first problem; whoever mends a task wants to see all of them. Pure.

Invariants (tests/tasks/test_read_task.py): data without problems converts; each problem names the key as it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from whippletree.configuration import Config
from whippletree.errors import did_you_mean


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a task, where ("task.toml: agent.timeout_sec", "environment/Dockerfile:3"), and what to do.

    Example: Problem("/tasks/t/task.toml: agent.timeout_sec = 0.0", "give a positive number of seconds")
    """

    cause: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.cause} ({self.next_step})"


def table_problems(kind: type[Config], data: Mapping[str, Any], origin: str, prefix: str = "") -> Iterator[Problem]:
    """Problems of one table and those below it. `origin`: the file; `prefix`: the table's own key with a dot, or ""."""
    hints = get_type_hints(kind)
    for key, value in data.items():
        if key in hints:
            yield from _value_problems(hints[key], value, origin, f"{prefix}{key}")
        else:
            yield Problem(f"{origin}: unknown key {prefix}{key}", f"{did_you_mean(key, hints, prefix=prefix)}; {FREE}")
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in data:
            yield Problem(f"{origin}: {prefix}{field.name} is missing", "add it; docs/tasks.md has every key")


FREE = "free keys belong into [metadata]"


def _value_problems(kind: Any, value: Any, origin: str, key: str) -> Iterator[Problem]:
    choices = get_args(kind) if get_origin(kind) not in (None, list, dict, Literal) else (kind,)
    tables = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, Config)]
    lists = [choice for choice in choices if get_origin(choice) is list]
    if tables and isinstance(value, dict):
        yield from table_problems(tables[0], value, origin, f"{key}.")
    elif lists and isinstance(value, list):
        for number, entry in enumerate(value):
            yield from _value_problems(get_args(lists[0])[0], entry, origin, f"{key}.{number}")
    else:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            yield Problem(f"{origin}: {key} = {value!r}: {error}", _choices(choices))


def _choices(choices: tuple[Any, ...]) -> str:
    words = [word for choice in choices if get_origin(choice) is Literal for word in get_args(choice)]
    return f"write one of {', '.join(words)}" if words else "docs/tasks.md has every key and its type"
