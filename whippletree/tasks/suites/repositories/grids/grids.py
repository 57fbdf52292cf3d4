"""Grids of characters: ways through them, regions, and the game of life."""

from __future__ import annotations

from collections import deque

AROUND = ((-1, 0), (1, 0), (0, -1), (0, 1))


def find(grid, sign):
    """(row, column) of the first place with a sign, or None."""
    for row, line in enumerate(grid):
        for column, found in enumerate(line):
            if found == sign:
                return row, column
    return None


def neighbours(grid, place):
    """Places above, below, left and right that are in the grid."""
    row, column = place
    for down, right in AROUND:
        if 0 <= row + down < len(grid) and 0 <= column + right < len(grid[row + down]):
            yield row + down, column + right


def steps(grid, start="S", goal="G", wall="#"):
    """The fewest steps from start to goal, or -1 where there is no way. Raises ValueError where one of them is missing."""
    first, last = find(grid, start), find(grid, goal)
    if first is None or last is None:
        raise ValueError("the grid needs a start and a goal")
    far = {first: 0}
    waiting = deque([first])
    while waiting:
        place = waiting.popleft()
        if place == last:
            return far[place]
        for row, column in neighbours(grid, place):
            if grid[row][column] != wall and (row, column) not in far:
                far[row, column] = far[place] + 1
                waiting.append((row, column))
    return -1


def regions(grid):
    """Sizes of the connected areas of equal signs, as {sign: [sizes, the largest first]}."""
    sizes = {}
    seen = set()
    for row, line in enumerate(grid):
        for column, sign in enumerate(line):
            if (row, column) in seen:
                continue
            area = {(row, column)}
            waiting = [(row, column)]
            while waiting:
                for other in neighbours(grid, waiting.pop()):
                    if other not in area and grid[other[0]][other[1]] == sign:
                        area.add(other)
                        waiting.append(other)
            seen |= area
            sizes.setdefault(sign, []).append(len(area))
    return {sign: sorted(found, reverse=True) for sign, found in sizes.items()}


def live(grid):
    """The next generation: "#" lives with two or three living neighbours of eight, and is born with three."""
    lines = []
    for row, line in enumerate(grid):
        text = ""
        for column, sign in enumerate(line):
            count = 0
            for above in range(max(0, row - 1), min(len(grid), row + 2)):
                for left in range(max(0, column - 1), min(len(line), column + 2)):
                    if (above, left) != (row, column) and grid[above][left] == "#":
                        count += 1
            text += "#" if count == 3 or (sign == "#" and count == 2) else "."
        lines.append(text)
    return lines


def rotate(grid):
    """The grid turned to the right."""
    return ["".join(line[at] for line in reversed(grid)) for at in range(len(grid[0]))] if grid else []
