"""Places in a Python module where a small edit makes another program. Pure.

An edit replaces bytes of the source, so that everything else, comments included, stays as its author wrote it.

Invariants (tests/tasks/test_injecting_mutations.py):
- an edited module parses, and its syntax tree differs from the original's;
- edits are found in the order of the source, the same each time, each once;
- nothing is edited in docstrings, annotations, decorators, f-strings or `__all__`.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: (r"<(?!=)", "<="),
    ast.LtE: (r"<=", "<"),
    ast.Gt: (r">(?!=)", ">="),
    ast.GtE: (r">=", ">"),
    ast.Eq: (r"==", "!="),
    ast.NotEq: (r"!=", "=="),
    ast.Is: (r"\bis\b(?!\s+not\b)", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
}
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*(?!\*)", "+"),
    ast.FloorDiv: (r"//", "*"),
    ast.Div: (r"/(?!/)", "*"),
    ast.Mod: (r"%", "//"),
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "lstrip": "rstrip", "rstrip": "lstrip"}
CALLS |= {
    "startswith": "endswith",
    "endswith": "startswith",
    "floor": "ceil",
    "ceil": "floor",
    "lower": "upper",
    "upper": "lower",
}


@dataclass(frozen=True, order=True)
class Edit:
    """Replace bytes [start, end) of the source by `text`. `function`: dotted name of where it is; `line`: from 1 on."""

    start: int
    end: int
    text: str
    kind: str
    line: int
    function: str

    def apply(self, source: bytes) -> bytes:
        """The edited source."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def edits(source: bytes) -> list[Edit]:
    """All edits of a module, none for one that does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    before = ast.dump(tree)
    found = sorted(set(_Finder(source).of(tree)))
    return [edit for edit in found if _differs(edit.apply(source), before)]


def _differs(source: bytes, before: str) -> bool:
    try:
        return ast.dump(ast.parse(source)) != before
    except (SyntaxError, ValueError):
        return False


class _Finder:
    def __init__(self, source: bytes) -> None:
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def of(self, tree: ast.Module) -> Iterator[Edit]:
        for statement in tree.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from self._definition(statement, "")

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, above: str) -> Iterator[Edit]:
        name = f"{above}.{node.name}" if above else node.name
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from self._definition(statement, name)
            elif not isinstance(node, ast.ClassDef):
                yield from self._visit(statement, name)

    def _visit(self, node: ast.AST, where: str) -> Iterator[Edit]:
        if isinstance(node, ast.JoinedStr):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from self._definition(node, where)
            return
        for start, end, text, kind in self._here(node):
            line = node.lineno if isinstance(node, ast.stmt | ast.expr) else 0
            yield Edit(start=start, end=end, text=text, kind=kind, line=line, function=where)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns") or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._visit(child, where)

    def _here(self, node: ast.AST) -> Iterator[tuple[int, int, str, str]]:
        match node:
            case ast.Compare(left=left, ops=ops, comparators=right):
                for one, operator, other in zip([left, *right], ops, right, strict=False):
                    pattern, text = COMPARISONS[type(operator)]
                    yield from self._between(one, other, pattern, text, "comparison")
            case ast.BoolOp(op=operator, values=values):
                word, text = ("and", "or") if isinstance(operator, ast.And) else ("or", "and")
                for one, other in itertools.pairwise(values):
                    yield from self._between(one, other, rf"\b{word}\b", text, "and-or")
            case ast.BinOp(left=one, op=operator, right=other) if type(operator) in OPERATORS:
                pattern, text = OPERATORS[type(operator)]
                yield from self._between(one, other, pattern, text, "arithmetic")
            case ast.AugAssign(target=target, op=operator, value=value) if type(operator) in OPERATORS:
                pattern, text = OPERATORS[type(operator)]
                yield from self._between(target, value, pattern + "=", text + "=", "arithmetic")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield (self._start(node), self._start(operand), "", "dropped not")
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield (*self._span(test), f"not ({self._text(test)})", "negated condition")
            case ast.Constant(value=value):
                yield from self._constant(node, value)
            case _:
                yield from self._statement(node)

    def _statement(self, node: ast.AST) -> Iterator[tuple[int, int, str, str]]:
        match node:
            case ast.Break():
                yield (*self._span(node), "continue", "break-continue")
            case ast.Continue():
                yield (*self._span(node), "break", "break-continue")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield (*self._span(value), "None", "lost result")
            case ast.Expr(value=ast.Call()) | ast.Raise():
                yield (*self._span(node), "pass", "dropped statement")
            case ast.Call(func=function, args=[one, other]) if not isinstance(one, ast.Starred):
                if not isinstance(other, ast.Starred) and ast.dump(one) != ast.dump(other):
                    text = f"{self._text(other)}, {self._text(one)}"
                    yield (self._start(one), self._end(other), text, "swapped arguments")
                yield from self._called(function)
            case ast.Call(func=function):
                yield from self._called(function)

    def _called(self, function: ast.expr) -> Iterator[tuple[int, int, str, str]]:
        name = function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
        if name in CALLS:
            end = self._end(function)
            yield (end - len(name), end, CALLS[name], "other function")

    def _constant(self, node: ast.AST, value: object) -> Iterator[tuple[int, int, str, str]]:
        if isinstance(value, bool):
            yield (*self._span(node), str(not value), "constant")
        elif isinstance(value, int) and self._text(node).isdecimal():
            yield (*self._span(node), str(value + 1), "constant")
            if value > 0:
                yield (*self._span(node), str(value - 1), "constant")

    def _between(self, one: ast.AST, other: ast.AST, pattern: str, text: str, kind: str) -> Iterator[tuple[int, int, str, str]]:
        start, end = self._end(one), self._start(other)
        gap = self._source[start:end].decode("utf-8", "replace")
        found = re.search(pattern, gap)
        if found and "#" not in gap and gap.isascii():
            yield (start + found.start(), start + found.end(), text, kind)

    def _start(self, node: ast.AST) -> int:
        assert isinstance(node, ast.expr | ast.stmt)
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.AST) -> int:
        assert isinstance(node, ast.expr | ast.stmt) and node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _span(self, node: ast.AST) -> tuple[int, int]:
        return self._start(node), self._end(node)

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()
