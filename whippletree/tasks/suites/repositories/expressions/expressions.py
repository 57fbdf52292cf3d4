"""Sums of numbers and names, as text: read, evaluated, written again."""

from __future__ import annotations

LEVELS = {"+": 1, "-": 1, "*": 2, "/": 2, "^": 3}
RIGHT = {"^"}


class Wrong(ValueError):
    """A text that is no expression."""


def tokens(text):
    """Numbers, names, operators and brackets, in order."""
    found = []
    at = 0
    while at < len(text):
        sign = text[at]
        if sign.isspace():
            at += 1
        elif sign in "+-*/^()":
            found.append(sign)
            at += 1
        elif sign.isdigit() or sign.isalpha():
            end = at
            while end < len(text) and (text[end].isalnum() or text[end] == "."):
                end += 1
            found.append(text[at:end])
            at = end
        else:
            raise Wrong(f"{sign!r} at {at}")
    return found


def postfix(text):
    """The tokens in the order of evaluation, without brackets. "~" is a sign before a number."""
    output = []
    waiting = []
    value_next = True
    for token in tokens(text):
        if token == "(":
            if not value_next:
                raise Wrong("an operator is missing before (")
            waiting.append(token)
        elif token == ")":
            if value_next:
                raise Wrong("a value is missing before )")
            while waiting and waiting[-1] != "(":
                output.append(waiting.pop())
            if not waiting:
                raise Wrong("a ) too many")
            waiting.pop()
        elif token in LEVELS and value_next:
            if token != "-":
                raise Wrong(f"a value is missing before {token}")
            waiting.append("~")
        elif token in LEVELS:
            while waiting and _goes_first(waiting[-1], token):
                output.append(waiting.pop())
            waiting.append(token)
            value_next = True
        else:
            if not value_next:
                raise Wrong(f"an operator is missing before {token}")
            output.append(token)
            value_next = False
    if value_next:
        raise Wrong("a value is missing at the end")
    while waiting:
        if waiting[-1] == "(":
            raise Wrong("a ( too many")
        output.append(waiting.pop())
    return output


def _goes_first(earlier, token):
    if earlier == "(":
        return False
    level = 2.5 if earlier == "~" else LEVELS[earlier]
    return level > LEVELS[token] or (level == LEVELS[token] and token not in RIGHT)


def evaluate(text, **values):
    """The value of an expression; names stand for the values given."""
    stack = []
    for token in postfix(text):
        if token == "~":
            stack.append(-stack.pop())
        elif token in LEVELS:
            right = stack.pop()
            left = stack.pop()
            stack.append(_apply(token, left, right))
        elif token[0].isdigit():
            stack.append(float(token))
        elif token in values:
            stack.append(values[token])
        else:
            raise Wrong(f"{token} has no value")
    return stack.pop()


def _apply(operator, left, right):
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if operator == "/":
        return left / right
    return left**right
