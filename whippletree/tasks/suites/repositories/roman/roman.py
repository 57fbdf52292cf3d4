"""Roman numerals from 1 to 3999."""

from __future__ import annotations

SIGNS = (
    (1000, "M"),
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
)
VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def write(number):
    """The numeral of a number."""
    if not 1 <= number <= 3999:
        raise ValueError(f"{number} has no numeral")
    text = ""
    for value, sign in SIGNS:
        while number >= value:
            text += sign
            number -= value
    return text


def read(text):
    """The number of a numeral; lower case is fine, other spellings than `write` gives are not."""
    signs = text.strip().upper()
    if not signs or any(sign not in VALUES for sign in signs):
        raise ValueError(f"{text!r} is no numeral")
    total = 0
    for at, sign in enumerate(signs):
        value = VALUES[sign]
        if at + 1 < len(signs) and value < VALUES[signs[at + 1]]:
            total -= value
        else:
            total += value
    if total > 3999 or write(total) != signs:
        raise ValueError(f"{text!r} is not how {total} is written")
    return total


def add(*numerals):
    """The sum of numerals, as a numeral."""
    return write(sum(read(numeral) for numeral in numerals))


def longest(first, last):
    """The number from first to last whose numeral is longest; the smaller of equals."""
    best = first
    for number in range(first + 1, last + 1):
        if len(write(number)) > len(write(best)):
            best = number
    return best
