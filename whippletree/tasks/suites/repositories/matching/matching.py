"""Patterns with * and ?, brackets that fit, and distances of words."""

from __future__ import annotations

PAIRS = {")": "(", "]": "[", "}": "{"}


def matches(pattern, text):
    """Whether a text fits a pattern: ? is one character, * any number of them."""
    at = 0
    place = 0
    star = -1
    mark = 0
    while at < len(text):
        if place < len(pattern) and pattern[place] == "*":
            star = place
            mark = at
            place += 1
        elif place < len(pattern) and pattern[place] in ("?", text[at]):
            place += 1
            at += 1
        elif star >= 0:
            place = star + 1
            mark += 1
            at = mark
        else:
            return False
    while place < len(pattern) and pattern[place] == "*":
        place += 1
    return place == len(pattern)


def first_unbalanced(text):
    """The place of the first bracket that has no partner, or -1; brackets in double quotes do not count."""
    waiting = []
    quoted = False
    for at, sign in enumerate(text):
        if sign == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif sign in PAIRS.values():
            waiting.append(at)
        elif sign in PAIRS:
            if not waiting or text[waiting[-1]] != PAIRS[sign]:
                return at
            waiting.pop()
    return waiting[0] if waiting else -1


def distance(one, other):
    """The fewest insertions, removals and replacements that make one word the other."""
    row = list(range(len(other) + 1))
    for at, sign in enumerate(one, 1):
        above = row[0]
        row[0] = at
        for beside, letter in enumerate(other, 1):
            cost = above if sign == letter else above + 1
            above = row[beside]
            row[beside] = min(cost, row[beside] + 1, row[beside - 1] + 1)
    return row[-1]


def nearest(word, words, most=2):
    """The words within the distance, the nearest first, equals in the order of the alphabet."""
    near = [(distance(word, other), other) for other in words]
    return [other for far, other in sorted(near) if far <= most]
