"""What a long piece of work over many things has decided so far: one line of JSON per thing, written as it is decided.

    {"work": "import swe-bench rows.jsonl"}
    {"name": "a__b-1", "kept": true}
    {"name": "a__b-2", "kept": false, "reason": "empty statement"}

Invariants (tests/tasks/test_journal.py):
- what was decided survives a kill, and is not decided again; a line that was cut off by one is decided anew;
- a journal of other work, or of the same work with other settings, is refused with what differs; one without a decision is
  begun anew, for there is nothing to keep;
- one process at a time decides; another is refused, and changes nothing.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from whippletree.errors import TaskError
from whippletree.files import locked
from whippletree.types import Struct


class Heading(Struct):
    """The first line: what the work is, settings included. Example: Heading(work="import swe-bench /data/rows.jsonl")"""

    work: str


class Decision(Struct):
    """What became of one thing. `reason`: a few words of a fixed set, "" for what is kept as usual; `detail`: of this one.

    Example: Decision(name="a__b-2", kept=False, reason="too many tests", detail="7012 tests, at most 200")
    """

    name: str
    kept: bool
    reason: str = ""
    detail: str = ""


class Tally(Struct):
    """Kept and dropped, by reason. Example: Tally(kept=41, dropped={"empty statement": 12, "too many tests": 2})"""

    kept: int
    dropped: dict[str, int]
    kept_because: dict[str, int] = {}


class Journal:
    """The decisions in a file; to be used in a `with`. Raises TaskError for the journal of other work, or of another process
    that is at it."""

    def __init__(self, path: Path, work: str) -> None:
        self.path = path
        self.decisions: dict[str, Decision] = {}
        busy = TaskError(f"{path}: another command is at work on it", "wait for its end, or choose another directory")
        with ExitStack() as held:
            held.enter_context(locked(path, busy))
            self._file = held.enter_context(path.open("ab"))
            kept = self._read(work)
            self._held = held.pop_all()
        self._file.truncate(kept)
        if not kept:
            self._append(Heading(work=work))

    def _read(self, work: str) -> int:
        """Take what is there; the length of it in bytes, without a line that was cut off."""
        whole = self.path.read_bytes()
        whole = whole[: whole.rfind(b"\n") + 1]
        if not whole:
            return 0
        first, *others = whole.splitlines()
        try:
            heading = msgspec.json.decode(first, type=Heading)
            found = [msgspec.json.decode(line, type=Decision) for line in others]
        except msgspec.DecodeError as error:
            raise TaskError(f"{self.path}: not a journal: {error}", "remove it to begin anew") from error
        if heading.work != work:
            if not found:
                return 0
            cause = f"{self.path} is the journal of other work: {_difference(heading.work, work)}"
            raise TaskError(cause, "use the same settings, another directory, or remove it to begin anew")
        self.decisions = {decision.name: decision for decision in found}
        return len(whole)

    def add(self, decision: Decision) -> None:
        """Decided: from here on also after a kill."""
        self._append(decision)
        self.decisions[decision.name] = decision

    def _append(self, record: Struct) -> None:
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def tally(self) -> Tally:
        """Counts by reason, the most frequent first."""
        dropped = Counter(found.reason for found in self.decisions.values() if not found.kept)
        because = Counter(found.reason for found in self.decisions.values() if found.kept and found.reason)
        kept = sum(found.kept for found in self.decisions.values())
        return Tally(kept=kept, dropped=dict(dropped.most_common()), kept_because=dict(because.most_common()))

    def close(self) -> None:
        """Let go of the file."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _difference(old: str, new: str) -> str:
    """What differs between two headings: settings by name where the work is of one kind, else the work."""
    (before, settings, kind), (now, wanted, other) = _parts(old), _parts(new)
    if (before, kind) != (now, other):
        return " ".join(filter(None, (before, kind)))
    changed = (name for name in {**settings, **wanted} if settings.get(name) != wanted.get(name))
    return ", ".join(f"{name} was {_json(settings.get(name))}, is {_json(wanted.get(name))}" for name in changed) or old


def _parts(work: str) -> tuple[str, dict[str, object], str]:
    """A heading's words before its settings, the settings (tables flattened), the words after them."""
    match = re.fullmatch(r"(.*?) (\{.*\}) ?(.*)", work)
    if match is None:
        return work, {}, ""
    try:
        return match[1], dict(_flat(msgspec.json.decode(match[2], type=dict[str, object]))), match[3]
    except msgspec.DecodeError:
        return work, {}, ""


def _flat(settings: Mapping[str, object], place: str = "") -> Iterator[tuple[str, object]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
