"""Putting things into boxes and amounts into coins; run lengths; checksums."""

from __future__ import annotations


def boxes(sizes, room):
    """Things by size into boxes: each into the first box with room for it, the largest first. Returns the boxes' contents."""
    made = []
    for size in sorted(sizes, reverse=True):
        if size > room or size <= 0:
            raise ValueError(f"{size} fits into no box")
        for box in made:
            if sum(box) + size <= room:
                box.append(size)
                break
        else:
            made.append([size])
    return made


def change(amount, coins):
    """The fewest coins that make an amount, the largest first; None where there is no way."""
    best = [None] * (amount + 1)
    best[0] = []
    for total in range(1, amount + 1):
        for coin in coins:
            if coin <= total and best[total - coin] is not None:
                tried = best[total - coin] + [coin]
                if best[total] is None or len(tried) < len(best[total]):
                    best[total] = tried
    return sorted(best[amount], reverse=True) if best[amount] is not None else None


def compress(text):
    """Runs as a letter and a count, with a count of one left out: "aaab" is "a3b"."""
    packed = ""
    at = 0
    while at < len(text):
        end = at
        while end < len(text) and text[end] == text[at]:
            end += 1
        if text[at].isdigit():
            raise ValueError("digits cannot be packed")
        packed += text[at] + (str(end - at) if end - at > 1 else "")
        at = end
    return packed


def expand(packed):
    """The inverse of `compress`."""
    text = ""
    at = 0
    while at < len(packed):
        end = at + 1
        while end < len(packed) and packed[end].isdigit():
            end += 1
        if packed[at].isdigit():
            raise ValueError("a count without a letter")
        text += packed[at] * int(packed[at + 1 : end] or 1)
        at = end
    return text


def luhn(digits):
    """Whether the last digit is the right check digit of the others; spaces do not matter."""
    plain = digits.replace(" ", "")
    if len(plain) < 2 or not plain.isdigit():
        return False
    total = 0
    for at, digit in enumerate(reversed(plain)):
        value = int(digit)
        if at % 2 == 1:
            value *= 2
            if value > 9:
                value -= 9
        total += value
    return total % 10 == 0


def share(total, parts):
    """Whole numbers that add up to the total, in proportion to the parts; what is left over goes to the first ones."""
    whole = sum(parts)
    if whole <= 0 or min(parts) < 0:
        raise ValueError("parts must be positive")
    given = [total * part // whole for part in parts]
    for at in range(total - sum(given)):
        given[at] += 1
    return given
