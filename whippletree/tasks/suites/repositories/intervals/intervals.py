"""Closed intervals of whole numbers, as pairs (first, last)."""

from __future__ import annotations


def merge(intervals):
    """The same numbers in as few intervals as possible, sorted. Touching intervals become one."""
    merged = []
    for first, last in sorted(intervals):
        if first > last:
            raise ValueError(f"({first}, {last}) is empty")
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def contains(intervals, number):
    """Whether a number lies in one of the merged intervals."""
    low, high = 0, len(intervals)
    while low < high:
        middle = (low + high) // 2
        first, last = intervals[middle]
        if number < first:
            high = middle
        elif number > last:
            low = middle + 1
        else:
            return True
    return False


def intersect(one, other):
    """The numbers that are in both lists of merged intervals."""
    common = []
    at, beside = 0, 0
    while at < len(one) and beside < len(other):
        first = max(one[at][0], other[beside][0])
        last = min(one[at][1], other[beside][1])
        if first <= last:
            common.append((first, last))
        if one[at][1] < other[beside][1]:
            at += 1
        else:
            beside += 1
    return common


def complement(intervals, low, high):
    """The numbers from low to high that are in none of the merged intervals."""
    gaps = []
    start = low
    for first, last in intervals:
        if last < low or first > high:
            continue
        if first > start:
            gaps.append((start, first - 1))
        start = max(start, last + 1)
    if start <= high:
        gaps.append((start, high))
    return gaps


def size(intervals):
    """How many numbers the merged intervals hold."""
    return sum(last - first + 1 for first, last in intervals)
