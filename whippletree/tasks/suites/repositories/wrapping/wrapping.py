"""Lines of text to a width."""

from __future__ import annotations


def wrap(text, width):
    """Lines of at most `width` characters, broken between words; a longer word is cut."""
    if width < 1:
        raise ValueError("a width of at least 1 is needed")
    lines = []
    line = ""
    for word in text.split():
        while len(word) > width:
            if line:
                lines.append(line)
                line = ""
            lines.append(word[:width])
            word = word[width:]
        if not word:
            continue
        if not line:
            line = word
        elif len(line) + 1 + len(word) <= width:
            line = line + " " + word
        else:
            lines.append(line)
            line = word
    if line:
        lines.append(line)
    return lines


def justify(line, width):
    """The line with its spaces widened to fill the width, the left ones first; a single word stays."""
    words = line.split()
    if len(words) < 2:
        return line.strip()
    spaces = width - sum(len(word) for word in words)
    share, rest = divmod(spaces, len(words) - 1)
    text = words[0]
    for at, word in enumerate(words[1:]):
        text += " " * (share + (1 if at < rest else 0)) + word
    return text


def columns(rows, gap=2):
    """Rows of cells as aligned lines; numbers to the right, text to the left, no space at the end."""
    if not rows:
        return []
    count = max(len(row) for row in rows)
    padded = [list(row) + [""] * (count - len(row)) for row in rows]
    widths = [max(len(str(row[at])) for row in padded) for at in range(count)]
    lines = []
    for row in padded:
        cells = []
        for cell, width in zip(row, widths):
            is_number = isinstance(cell, (int, float)) and not isinstance(cell, bool)
            cells.append(str(cell).rjust(width) if is_number else str(cell).ljust(width))
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def shorten(text, width, mark="..."):
    """The text in at most `width` characters, with a mark where something is left out."""
    if len(text) <= width:
        return text
    if width <= len(mark):
        return mark[:width]
    return text[: width - len(mark)].rstrip() + mark
