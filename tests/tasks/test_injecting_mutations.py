"""whippletree/tasks/injecting/mutations.py"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from whippletree.tasks.injecting.mutations import edits
from whippletree.tasks.suites.bugs import HELDOUT, TRAIN, module_files

WITHIN = 'def f(a, b, *rest):\n    """Doc 1."""\n    {}\n'
OWN = Path(__file__).parents[2] / "whippletree" / "tasks"


def made(statement: str) -> set[tuple[str, str]]:
    """(kind, the statement that comes of it) for each edit."""
    source = WITHIN.format(statement).encode()
    found = edits(source)
    return {(edit.kind, edit.apply(source).decode().partition('"""\n    ')[2].rstrip("\n")) for edit in found}


@pytest.mark.parametrize(
    ("statement", "kind", "after"),
    [
        ("x = a < b", "comparison", "x = a <= b"),
        ("x = a >= b", "comparison", "x = a > b"),
        ("x = a == b", "comparison", "x = a != b"),
        ("x = a is not b", "comparison", "x = a is b"),
        ("x = a not  in b", "comparison", "x = a in b"),
        ("x = (a) in (b)", "comparison", "x = (a) not in (b)"),
        ("x = 'é' < a < b", "comparison", "x = 'é' < a <= b"),
        ("x = a and b", "and-or", "x = a or b"),
        ("x = a - b", "arithmetic", "x = a + b"),
        ("x = a // b", "arithmetic", "x = a * b"),
        ("x = (a) * (b)", "arithmetic", "x = (a) + (b)"),
        ("x += a", "arithmetic", "x -= a"),
        ("x = not a", "dropped not", "x = a"),
        ("x = a if b else 1", "negated condition", "x = a if not (b) else 1"),
        ("x = 5", "constant", "x = 6"),
        ("x = 5", "constant", "x = 4"),
        ("x = True", "constant", "x = False"),
        ("return a + b", "lost result", "return None"),
        ("a.append(b)", "dropped statement", "pass"),
        ("raise ValueError(a)", "dropped statement", "pass"),
        ("x = divmod(a, b + 1)", "swapped arguments", "x = divmod(b + 1, a)"),
        ("x = max(rest)", "other function", "x = min(rest)"),
        ("x = a.startswith(b)", "other function", "x = a.endswith(b)"),
    ],
)
def test_each_kind_of_edit(statement: str, kind: str, after: str):
    assert (kind, after) in made(statement)


def test_loops_are_left_and_gone_on_with():
    source = b"def f():\n    while True:\n        break\n"
    assert b"continue" in {edit.apply(source).split()[-1] for edit in edits(source) if edit.kind == "break-continue"}


@pytest.mark.parametrize(
    "statement",
    ["x: 'a < 1' = a", 'x = f"{a + 1}"', "x = 'a < b'", "x = 0x10 @ a", "pass", "'doc 5'", "x = f(*rest)"],
)
def test_what_is_left_alone(statement: str):
    assert made(statement) == set()


def test_nothing_outside_of_functions_is_edited():
    head = b"X = 5\n__all__ = ['a']\n\n\n@mark(1)\nclass A(B):\n    y = 1 + 2\n\n"
    source = head + b"    def f(self, a: 'int' = 3) -> 'x < y':\n        pass\n"
    assert edits(source) == []
    assert edits(b"def f(:\n") == [] and edits(b"") == [] and edits(b"\0") == []


@pytest.mark.parametrize("name", [*TRAIN, *HELDOUT, "mutations", "repository"])
def test_every_edit_gives_another_module_that_parses(name: str):
    own = OWN / "injecting" / f"{name}.py"
    source = own.read_bytes() if name in ("mutations", "repository") else module_files(name)[f"{name}.py"]
    found = edits(source)
    assert found == sorted(set(found)) == edits(source)
    assert len(found) > 40
    before = ast.dump(ast.parse(source))
    functions = {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
    for edit in found:
        after = edit.apply(source)
        assert ast.dump(ast.parse(after)) != before
        assert edit.function.rpartition(".")[2] in functions
        assert after.count(b'"""') == source.count(b'"""')
