"""How a step's prefill budget is shared between requests. A pure function.

Invariants (tests/engines/test_embedded_planning.py):
- no more than the budget is given out, none is left while someone wants it, and nobody gets more than they want;
- the oldest request gets at least half of the budget or all it wants, so nobody starves;
- the rest goes to the requests with the fewest tokens left, so that a long prompt does not stall short ones.
"""

from __future__ import annotations

from collections.abc import Sequence


def share_budget(wanted: Sequence[int], budget: int) -> list[int]:
    """Tokens each request may prefill now. `wanted`: prompt tokens left, oldest request first; the same length comes back."""
    given = [0] * len(wanted)
    if not wanted:
        return given
    given[0] = min(wanted[0], max(1, budget // 2))
    left = budget - given[0]
    for index in sorted(range(1, len(wanted)), key=lambda i: wanted[i]):
        if left <= 0:
            break
        given[index] = min(wanted[index], left)
        left -= given[index]
    given[0] += min(wanted[0] - given[0], max(0, left))
    return given
