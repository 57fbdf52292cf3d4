"""`${NAME}` and `${NAME:-default}` in the variables of a task, filled in from a mapping that the configuration gives.

Pure: nothing is ever taken from the environment of this process.

Invariants (tests/tasks/test_read_task.py): a missing variable names itself; what is filled in is not expanded again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<other>\$\{[^}]*\}?)")


class MissingVariable(ValueError):
    """A reference that cannot be filled in; its text says which and what to do."""


def resolve(text: str, values: Mapping[str, str]) -> str:
    """`text` with every reference filled in. Raises MissingVariable."""

    def value(match: re.Match[str]) -> str:
        if match["other"] is not None:
            raise MissingVariable(f"{match['other']} is neither ${{NAME}} nor ${{NAME:-default}}")
        name, default = match["name"], match["default"]
        if values.get(name) or (name in values and default is None):
            return values[name]
        if default is None:
            raise MissingVariable(f"the variable {name} is not given")
        return str(default)

    return _REFERENCE.sub(value, text)
