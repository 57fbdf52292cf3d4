"""Importing what a configuration names as "module:attribute"."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from whippletree.errors import ConfigurationError
from whippletree.loading import load_named


def test_an_attribute_is_found_also_inside_another() -> None:
    assert load_named("x", "os:sep") == "/"
    assert load_named("x", "pathlib:Path.cwd") == Path.cwd


@pytest.mark.parametrize("name", ["", "module", "module:", ":name", ".relative:name", "a/b"])
def test_another_form_is_refused_before_anything_is_imported(name: str) -> None:
    before = set(sys.modules)
    with pytest.raises(ConfigurationError, match=r"loop\.hook .* is not of the form"):
        load_named("loop.hook", name)
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("def broken(:", "SyntaxError"),
        ("raise KeyError('mine')", "KeyError: 'mine'"),
        ("value = 1", "has no wanted"),
    ],
)
def test_what_a_module_raises_is_told(text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"users_own_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(ConfigurationError) as failure:
        load_named("gateway.router", f"{name}:wanted")
    assert "gateway.router" in str(failure.value) and name in str(failure.value) and told in str(failure.value)
