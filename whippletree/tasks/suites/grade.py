"""Compare an answer: `python3 grade.py WANTED.json ANSWER.txt REWARD.json`.

Runs inside a sandbox, under its own Python, with the standard library alone. WANTED: {"text": "Velmora", "also": ["Old
Velmora"]}, or {"number": 12.5, "tolerance": 0.01}. Three scores are written: `reward`, 1 for a right answer; `f1`, how far its
words are those of the nearest right answer; `answered`, 1 where something of the right kind was handed in.

Invariants (tests/tasks/test_suites_grade.py):
- text is equal up to case, white space, a leading article and punctuation at the ends; any of several right answers counts;
- a number counts within its tolerance, with or without thousands separators, a percent or currency sign;
- no answer, an empty one and one that is no number earn 0 by every score; a right answer earns 1 by every score.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

LIMIT = 10_000  # characters of an answer that are looked at
ARTICLES = ("the", "a", "an")


def is_right(wanted: dict[str, Any], answer: str) -> bool:
    """Whether the answer is what is wanted."""
    if "number" in wanted:
        found = number(answer)
        return found is not None and abs(found - wanted["number"]) <= wanted["tolerance"] * (1 + 1e-9)
    return bool(plain(answer)) and plain(answer) in map(plain, texts(wanted))


def scores(wanted: dict[str, Any], answer: str) -> dict[str, float]:
    """The named scores of an answer."""
    right = float(is_right(wanted, answer))
    if "number" in wanted:
        return {"reward": right, "f1": right, "answered": float(number(answer) is not None)}
    near = max(f1(text, answer) for text in texts(wanted))
    return {"reward": right, "f1": max(right, near), "answered": float(bool(plain(answer)))}


def texts(wanted: dict[str, Any]) -> list[str]:
    """The right answers."""
    return [wanted["text"], *wanted.get("also", ())]


def f1(wanted: str, answer: str) -> float:
    """Harmonic mean of precision and recall of an answer's words, each as often as it stands there; articles do not count."""
    there, given = (
        Counter(word for word in re.findall(r"\w+", text.casefold()) if word not in ARTICLES) for text in (wanted, answer)
    )
    common = (there & given).total()
    return 2.0 * common / (there.total() + given.total()) if common else 0.0


def plain(text: str) -> str:
    """Lower case, single spaces, no article in front, no punctuation at the ends."""
    words = " ".join(text.casefold().split()).strip(" .,;:!?\"'`*")
    return re.sub(rf"^({'|'.join(ARTICLES)}) ", "", words)


def number(text: str) -> float | None:
    """The number that a text is."""
    bare = text.strip().strip("$€%* ").replace(",", "").replace("_", "")
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", bare):
        return None
    found = float(bare)
    return found if math.isfinite(found) else None


def main() -> None:
    """Compare, and write the reward."""
    wanted = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    place = Path(sys.argv[2])
    text = place.read_text(encoding="utf-8", errors="replace")[:LIMIT].strip() if place.is_file() else ""
    answer = text.splitlines()[0] if text else ""
    found = scores(wanted, answer)
    sys.stdout.write(f"the answer is {answer!r}, reward {found['reward']:g}\n")
    Path(sys.argv[3]).write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
