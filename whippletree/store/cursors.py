"""Where a listing goes on: opaque text for whoever asks, a place in the order for the store. Pure.

Invariants (tests/store/test_store_pages.py): a cursor goes back to the place it was made of; any other text is refused.
"""

from __future__ import annotations

import re
from typing import Literal

from whippletree.errors import StoreError

Order = Literal["created", "updated"]
Place = tuple[float, int]  # (updated, seq); updated is 0.0 in the order of creation

_CREATED = re.compile(r"c(\d{1,18})")
_UPDATED = re.compile(r"u(\d+(?:\.\d+)?(?:e[+-]?\d+)?):(\d{1,18})")


def cursor_of(order: Order, place: Place) -> str:
    """The cursor behind a place."""
    updated, seq = place
    return f"c{seq}" if order == "created" else f"u{updated!r}:{seq}"


def place_of(order: Order, cursor: str) -> Place:
    """The place of a cursor; "" is before everything. Raises StoreError for a text that is no cursor of this order."""
    if not cursor:
        return (0.0, 0)
    if order == "created" and (found := _CREATED.fullmatch(cursor)):
        return (0.0, int(found[1]))
    if order == "updated" and (found := _UPDATED.fullmatch(cursor)):
        return (float(found[1]), int(found[2]))
    raise StoreError(f"{cursor[:60]!r} is no cursor of this listing", "use the `next` of an earlier page, or none")
