"""Functions chosen by name from the configuration: shipped ones, or a user's own as "module:function".

Invariants (tests/batching/test_batching_registry.py):
- a name that is not known is an error that names the nearest known one;
- what is found can be called with the arguments of its kind, or is refused before anything runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from whippletree.errors import ConfigurationError, did_you_mean
from whippletree.loading import load_named

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Registry(Generic[F]):
    """The functions of one kind. `what` is the kind in words; `arguments` are what each of them is called with, in order."""

    what: str
    arguments: tuple[str, ...]
    shipped: Mapping[str, F]

    def find(self, name: str) -> F:
        """The function of that name. Raises ConfigurationError."""
        found = self.shipped.get(name)
        if found is not None:
            return found
        complaint = self.complaint(name)
        if complaint:
            raise ConfigurationError(f"{self.what} {name!r} is not known", complaint)
        return self._own(name)

    def complaint(self, name: str) -> str:
        """What to do about a name that is neither shipped nor of the form "module:function"; "" for one that may be right.

        Nothing is imported.
        """
        module, _, function = name.partition(":")
        if name in self.shipped or (module and function and not module.startswith(".")):
            return ""
        known = did_you_mean(name, self.shipped, f"known: {', '.join(sorted(self.shipped))}")
        return f'{known}; write "module:function" for your own'

    def _own(self, name: str) -> F:
        wants = f"it is called with ({', '.join(self.arguments)})"
        found = load_named(self.what, name)
        if not callable(found):
            raise ConfigurationError(f"{self.what} {name!r} is not a function", wants)
        try:
            inspect.signature(found).bind(*self.arguments)
        except TypeError as error:
            raise ConfigurationError(f"{self.what} {name!r}: {error}", wants) from error
        return cast(F, found)
