"""A module that states invariants names the tests that hold them, and those exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(path for path in (ROOT / "whippletree").rglob("*.py") if "Invariants (" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_named_tests_exist(path: Path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    where = text.split("Invariants (", 1)[1].split(")", 1)[0]
    named = re.findall(r"tests/[\w/]+(?:\.py)?", where)
    named += [f"{Path(named[0]).parent}/{name}" for name in re.findall(r"(?<![\w/])test_\w+\.py", where)]
    assert named, "name the test file, as in: Invariants (tests/room/test_module.py)"
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing
