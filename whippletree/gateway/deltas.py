"""The stored request: what the harness sent, less what an earlier request of the attempt has already. Pure; knows no dialect.

    body ─► top-level fields ─┬─ equal to the base's ────────────► its name
                              ├─ a list like the base's ─────────► runs of the base's elements, and new elements as they are
                              └─ anything else ──────────────────► as it is

The base is named in what is stored, so a request is put together again by walking from base to base (`unpack`). A skeleton is
what is remembered of a request to compare the next one with: eight bytes of digest per element, no text.
Invariants (tests/gateway/test_gateway_deltas.py):
- `unpack` gives every field's own JSON text back, byte for byte (of a list: that of each element), in the request's own order;
- what is stored grows with the elements that are new, wherever in a list they are;
- a request without a base, or that is no JSON object, is stored as it came.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec

from whippletree.errors import StoreError
from whippletree.gateway.digest import Fields
from whippletree.types import Struct

MARK = "whippletree_base"
WIDTH = 8  # bytes of digest per element
LONGEST_WALK = 1_000_000  # bases; more is a damaged record


class Skeleton(msgspec.Struct, frozen=True):
    """What is remembered of a request: per field the digest of its text, and for a list the digests of its elements, joined.

    Digests are Python's own keyed 64-bit hashes of bytes: cheap, safe against what a harness may send, and good for this
    process alone, as skeletons are.
    """

    fields: dict[str, int]
    lists: dict[str, bytes]


class Run(Struct):
    """Elements of a list: `count` of the base's from place `start` on, or new ones.

    Example: Run(start=0, count=12)  or  Run(items=(msgspec.Raw(b'{"role": "user"}'),))
    """

    start: int = 0
    count: int = 0
    items: tuple[msgspec.Raw, ...] = ()


class Packed(Struct):
    """A request as it is stored. `order`: all its fields, left out where it is the base's order.

    Example: Packed(whippletree_base="c-5d1f", lists={"messages": (Run(count=2), Run(items=(...)))})
    """

    whippletree_base: str
    order: tuple[str, ...] | None = None
    lists: dict[str, tuple[Run, ...]] = {}
    fields: dict[str, msgspec.Raw] = {}


def pack(body: bytes, fields: Fields, base: Skeleton | None, base_call_id: str) -> tuple[bytes, Skeleton]:
    """What to store of a request, and its skeleton. `fields` are the body's. Without `base` the body is stored whole."""
    skeleton = _skeleton(fields)
    if base is None and MARK not in fields:
        return body, skeleton
    known = base or Skeleton({}, {})
    lists: dict[str, tuple[Run, ...]] = {}
    plain: dict[str, msgspec.Raw] = {}
    for name, raw in fields.items():
        if known.fields.get(name) == skeleton.fields[name]:
            continue
        if name in skeleton.lists and name in known.lists:
            lists[name] = _runs(raw, skeleton.lists[name], known.lists[name])
        else:
            plain[name] = raw
    order = None if base is not None and list(known.fields) == list(fields) else tuple(fields)
    packed = Packed(whippletree_base=base_call_id if base is not None else "", order=order, lists=lists, fields=plain)
    return msgspec.json.encode(packed), skeleton


def _skeleton(fields: dict[str, msgspec.Raw]) -> Skeleton:
    digests: dict[str, int] = {}
    lists: dict[str, bytes] = {}
    for name, raw in fields.items():
        text = bytes(raw)
        digests[name] = hash(text)
        if text[:1] == b"[":
            lists[name] = array("q", map(hash, map(bytes, _items(text)))).tobytes()
    return Skeleton(digests, lists)


def _items(text: bytes) -> list[msgspec.Raw]:
    return msgspec.json.decode(text, type=list[msgspec.Raw])


def _runs(raw: msgspec.Raw, new: bytes, old: bytes) -> tuple[Run, ...]:
    """A list in terms of the base's: the longest runs that follow one another, then what is new."""
    items = _items(bytes(raw))
    count = _shared(new, old)
    runs = [Run(count=count)] if count else []
    places: dict[bytes, int] = {}
    for number in reversed(range(len(old) // WIDTH)):
        places[old[number * WIDTH : number * WIDTH + WIDTH]] = number
    fresh: list[msgspec.Raw] = []
    index = count
    while index < len(items):
        at = index * WIDTH
        element = new[at : at + WIDTH]
        place: int | None = index if old[at : at + WIDTH] == element else places.get(element)
        if place is None:
            fresh.append(items[index])
            index += 1
            continue
        if fresh:
            runs.append(Run(items=tuple(fresh)))
            fresh = []
        length = _shared(new[at:], old[place * WIDTH :])
        runs.append(Run(start=place, count=length))
        index += length
    if fresh:
        runs.append(Run(items=tuple(fresh)))
    return tuple(runs)


def _shared(one: bytes, other: bytes) -> int:
    """How many elements two lists of digests have in common from their start."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter // WIDTH
    return next(at for at in range(0, shorter, WIDTH) if one[at : at + WIDTH] != other[at : at + WIDTH]) // WIDTH


def unpack(stored: bytes, resolve: Callable[[str], bytes]) -> bytes:
    """The request again, as one JSON object. `resolve` gives what was stored under a call's id.

    A request that was stored as it came is given back as it is. Raises StoreError when the record does not hang together, and
    what `resolve` raises.
    """
    chain: list[Packed] = []
    fields: dict[str, msgspec.Raw] = {}
    text = stored
    while (packed := _packed(text)) is not None:
        chain.append(packed)
        if not packed.whippletree_base:
            break
        if len(chain) > LONGEST_WALK:
            raise StoreError("the stored requests name one another in a circle", "the record is damaged")
        text = resolve(packed.whippletree_base)
    else:
        if not chain:
            return stored
        fields = _fields(text)
    for packed in reversed(chain):
        fields = _applied(packed, fields)
    inside = b",".join(msgspec.json.encode(name) + b":" + bytes(raw) for name, raw in fields.items())
    return b"{" + inside + b"}"


def _packed(text: bytes) -> Packed | None:
    """The stored form, or None for a request that was stored as it came."""
    if not text.startswith(b'{"' + MARK.encode() + b'":'):
        return None
    return msgspec.json.decode(text, type=Packed)


def _fields(text: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise StoreError(f"a stored request is no JSON object: {error}", "the record is damaged") from error


def _applied(packed: Packed, base: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    made: dict[str, msgspec.Raw] = {}
    for name in base if packed.order is None else packed.order:
        if name in packed.fields:
            made[name] = packed.fields[name]
        elif name in packed.lists:
            made[name] = _joined(packed.lists[name], base.get(name))
        elif name in base:
            made[name] = base[name]
        else:
            raise StoreError(f"a stored request has no field {name!r}, nor has its base", "the record is damaged")
    return made


def _joined(runs: tuple[Run, ...], base: msgspec.Raw | None) -> msgspec.Raw:
    known = [] if base is None else _items(bytes(base))
    items: list[msgspec.Raw] = []
    for run in runs:
        if run.start < 0 or run.start + run.count > len(known):
            raise StoreError("a stored request points behind the end of its base", "the record is damaged")
        items += known[run.start : run.start + run.count]
        items += run.items
    return msgspec.Raw(b"[" + b",".join(map(bytes, items)) + b"]")
