from __future__ import annotations

import sys
import types
from collections.abc import Callable

import pytest

from whippletree.batching.registry import Registry
from whippletree.errors import ConfigurationError


def double(value: float) -> float:
    return 2 * value


def needs_two(value: float, other: float) -> float:
    return value + other


REGISTRY: Registry[Callable[[float], float]] = Registry(what="toy", arguments=("value",), shipped={"double": double})


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("mine")
    module.__dict__.update(half=lambda value: value / 2, constant=3, two=needs_two)
    monkeypatch.setitem(sys.modules, "mine", module)


def test_a_shipped_function_and_a_users_own_are_found(mine: None) -> None:
    assert REGISTRY.find("double")(4.0) == 8.0
    assert REGISTRY.find("mine:half")(4.0) == 2.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("duoble", r"toy 'duoble' is not known \(did you mean double\?; write \"module:function\""),
        ("other", r"toy 'other' is not known \(known: double"),
        ("", "is not known"),
        (":half", "is not known"),
        ("mine:", "is not known"),
        ("no_such_module_anywhere:half", "No module named.*check that the module can be imported"),
        ("mine:third", "third.*define it in mine"),
        ("mine:constant", r"is not a function \(it is called with \(value\)\)"),
        ("mine:two", r"missing a required argument: 'other' \(it is called with \(value\)\)"),
        (".mine:half", "is not known"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_do(mine: None, name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        REGISTRY.find(name)


def test_a_complaint_imports_nothing() -> None:
    assert REGISTRY.complaint("no_such_module_anywhere:half") == ""
    assert REGISTRY.complaint("double") == ""
    assert "did you mean double?" in REGISTRY.complaint("doubel")
    assert "no_such_module_anywhere" not in sys.modules
