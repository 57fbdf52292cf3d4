"""Rows as dictionaries: choosing, joining, grouping, reading from text."""

from __future__ import annotations


def parse(text, separator=","):
    """Rows of a text whose first line names the columns. Cells may be in double quotes, with "" for a quote."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return []
    names = split(lines[0], separator)
    rows = []
    for number, line in enumerate(lines[1:], 2):
        cells = split(line, separator)
        if len(cells) != len(names):
            raise ValueError(f"line {number} has {len(cells)} cells, not {len(names)}")
        rows.append(dict(zip(names, cells)))
    return rows


def split(line, separator=","):
    """The cells of a line."""
    cells = []
    cell = ""
    quoted = False
    at = 0
    while at < len(line):
        sign = line[at]
        if quoted and sign == '"' and line[at + 1 : at + 2] == '"':
            cell += '"'
            at += 1
        elif sign == '"':
            quoted = not quoted
        elif sign == separator and not quoted:
            cells.append(cell)
            cell = ""
        else:
            cell += sign
        at += 1
    if quoted:
        raise ValueError("a quote is not closed")
    cells.append(cell)
    return cells


def where(rows, **wanted):
    """Rows that have all these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def join(left, right, on):
    """Each pair of rows that agree in a column; the left row's values win. Rows without a partner are left out."""
    by = {}
    for row in right:
        by.setdefault(row[on], []).append(row)
    return [{**other, **row} for row in left for other in by.get(row[on], [])]


def totals(rows, by, column):
    """Sums of a column for each value of another, the largest first, equals by name."""
    sums = {}
    for row in rows:
        sums[row[by]] = sums.get(row[by], 0) + float(row[column])
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))


def median(numbers):
    """The middle number, or the mean of the two in the middle."""
    if not numbers:
        raise ValueError("no numbers")
    ordered = sorted(numbers)
    half = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2
