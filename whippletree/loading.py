"""What a user names as "module:attribute" in a configuration, imported.

Invariants (tests/test_loading.py):
- whatever a user's module raises while it is imported is a ConfigurationError that names the setting, the module and the error;
- a name of another form is refused before anything is imported.
"""

from __future__ import annotations

import importlib

from whippletree.errors import ConfigurationError

__all__ = ["load_named"]


def load_named(what: str, name: str) -> object:
    """The attribute called `name`, "module:attribute" (dots reach into it). `what` is the setting in words, for the error.

    Raises ConfigurationError.
    """
    module, _, path = name.partition(":")
    if not module or not path or module.startswith("."):
        raise ConfigurationError(
            f'{what} {name!r} is not of the form "module:name"', "write the module that holds it, and its name"
        )
    try:
        found: object = importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything; its class and words say what
        cause = f"{what} {name!r} cannot be loaded: importing {module} raised {type(error).__name__}: {error}"
        raise ConfigurationError(cause, "check that the module can be imported here") from error
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise ConfigurationError(f"{what} {name!r} cannot be loaded: {module} has no {path}", f"define it in {module}")
        found = getattr(found, attribute)
    return found
