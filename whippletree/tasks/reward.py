"""The training reward as an expression over a verifier's named scores: `0.8 * correct + 0.2 * style`. Pure.

    names of scores, score("any name"), numbers, + - * /, min(), max(), clip(x, low, high), < <= > >= == !=,
    and, or, not, a if condition else b

It is parsed by Python's `ast` and walked here; nothing of it is ever executed as Python.

Invariants (tests/tasks/test_reward_expression.py):
- whatever is not in that list is refused when the expression is read, with the place and what is allowed;
- an unknown name is an error that suggests the nearest score; a value is finite or a VerifierError;
- weights that add up to 1 give full scores exactly 1: a value has twelve digits, so that no rounding stands below a threshold.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Mapping

from whippletree.errors import ConfigurationError, VerifierError, did_you_mean

LENGTH = 2_000  # characters of an expression
DIGITS = 12  # of a reward; a float has fifteen

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS = ("clip", "max", "min", "score")
_ALLOWED = "allowed: names of scores, numbers, + - * /, min, max, clip, score, comparisons, and/or/not, a if b else c"


class RewardExpression:
    """A reward expression that was read. Its text is what is recorded with a reward."""

    def __init__(self, text: str) -> None:
        """Raises ConfigurationError where it is no such expression."""
        self.text = text.strip()
        if not self.text or len(text) > LENGTH:
            raise ConfigurationError(f"a reward expression of {len(text)} characters", f"write 1 to {LENGTH} characters")
        try:
            self._body = ast.parse(self.text, mode="eval").body
            self.names = frozenset(_names(self._body))
        except SyntaxError as error:
            raise ConfigurationError(f"reward = {text!r}: {error.msg} at character {error.offset}", _ALLOWED) from error
        except (RecursionError, MemoryError, ValueError) as error:
            raise ConfigurationError(f"reward = {text[:200]!r} cannot be read: {error}", _ALLOWED) from error

    def check(self, known: Collection[str]) -> None:
        """Raises ConfigurationError for a score that is not among those that are known."""
        for name in sorted(self.names):
            if name not in known:
                step = did_you_mean(name, known, f"the verifier gave: {', '.join(sorted(known))}")
                raise ConfigurationError(f"reward = {self.text!r}: there is no score {name!r}", step)

    def value(self, scores: Mapping[str, float]) -> float:
        """The reward of these scores. Raises ConfigurationError for a score that is not there, VerifierError for no number."""
        self.check(scores)
        try:
            found = float(_value(self._body, scores))
        except (ZeroDivisionError, OverflowError) as error:
            raise VerifierError(f"reward = {self.text!r} of {_shown(scores)}: {error}", "guard it with a condition") from error
        if not math.isfinite(found):
            raise VerifierError(f"reward = {self.text!r} of {_shown(scores)} is {found}", "guard it with a condition")
        return float(f"{found:.{DIGITS}g}")


def reward_of(scores: Mapping[str, float], rule: RewardExpression | None) -> float:
    """The reward: by the rule, or the score named "reward", or the only one. Raises ConfigurationError, VerifierError."""
    if rule is not None:
        return rule.value(scores)
    if "reward" in scores:
        return scores["reward"]
    if len(scores) == 1:
        return next(iter(scores.values()))
    raise VerifierError(f"the scores are {', '.join(scores)}", 'name the one that counts "reward", or set control.reward')


def _shown(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {value:g}" for name, value in scores.items())


def _refuse(node: ast.expr, what: str, next_step: str = _ALLOWED) -> ConfigurationError:
    return ConfigurationError(f"a reward expression may not hold {what} (character {node.col_offset + 1})", next_step)


def _names(node: ast.expr) -> set[str]:
    """The scores that an expression needs. Raises ConfigurationError at the first thing that is not allowed."""
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return set()
        case ast.Name(id=name):
            return {name}
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _names(left) | _names(right)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
            return _names(operand)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARE for op in ops):
            return set().union(*(_names(part) for part in (left, *others)))
        case ast.BoolOp(values=values):
            return set().union(*(_names(part) for part in values))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _names(test) | _names(body) | _names(orelse)
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
            return _call_names(node, function, arguments)
    raise _refuse(node, ast.unparse(node)[:60])


def _call_names(node: ast.expr, function: str, arguments: list[ast.expr]) -> set[str]:
    match function, arguments:
        case "score", [ast.Constant(value=str() as name)]:
            return {name}
        case (("min" | "max"), [_, *_]):
            return set().union(*(_names(part) for part in arguments))
        case "clip", [_, _, _]:
            return set().union(*(_names(part) for part in arguments))
        case (("min" | "max" | "clip" | "score"), _):
            raise _refuse(node, f"{function} of {len(arguments)} values", 'write min(a, b), clip(x, 0, 1), score("name")')
    raise _refuse(node, f"{function}()", did_you_mean(function, _FUNCTIONS, _ALLOWED))


def _value(node: ast.expr, scores: Mapping[str, float]) -> float:
    """The value of an expression that `_names` has let through."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return scores[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(left, scores), _value(right, scores))
        case ast.UnaryOp(op=op, operand=operand):
            value = _value(operand, scores)
            return float(not value) if isinstance(op, ast.Not) else -value if isinstance(op, ast.USub) else value
        case ast.Compare() | ast.BoolOp():
            return float(_holds(node, scores))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, scores) else orelse, scores)
        case ast.Call(func=ast.Name(id="score"), args=[ast.Constant(value=str() as name)]):
            return scores[name]
        case ast.Call(func=ast.Name(id=function), args=arguments):
            return _called(function, [_value(part, scores) for part in arguments])
    raise AssertionError(f"{ast.dump(node)} was let through")


def _holds(node: ast.Compare | ast.BoolOp, scores: Mapping[str, float]) -> bool:
    if isinstance(node, ast.BoolOp):
        several = all if isinstance(node.op, ast.And) else any
        return several(_value(part, scores) for part in node.values)
    values = [_value(part, scores) for part in (node.left, *node.comparators)]
    return all(_COMPARE[type(op)](values[place], values[place + 1]) for place, op in enumerate(node.ops))


def _called(function: str, values: list[float]) -> float:
    if function == "clip":
        value, low, high = values
        return min(max(value, low), high)
    return min(values) if function == "min" else max(values)
