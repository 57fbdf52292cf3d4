"""Compare an answer: `python3 grade.py WANTED.json ANSWER.txt REWARD.txt`.

Runs inside a sandbox, under its own Python, with the standard library alone. WANTED: {"text": "Velmora"}, or {"number": 12.5,
"tolerance": 0.01}.

Invariants (tests/tasks/test_suites_grade.py):
- text is equal up to case, white space, a leading article and punctuation at the ends;
- a number counts within its tolerance, with or without thousands separators, a percent or currency sign;
- no answer, an empty one and one that is no number earn 0.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

LIMIT = 10_000  # characters of an answer that are looked at


def is_right(wanted: dict[str, Any], answer: str) -> bool:
    """Whether the answer is what is wanted."""
    if "number" in wanted:
        found = number(answer)
        return found is not None and abs(found - wanted["number"]) <= wanted["tolerance"] * (1 + 1e-9)
    return bool(plain(answer)) and plain(answer) == plain(wanted["text"])


def plain(text: str) -> str:
    """Lower case, single spaces, no article in front, no punctuation at the ends."""
    words = " ".join(text.casefold().split()).strip(" .,;:!?\"'`*")
    return re.sub(r"^(the|a|an) ", "", words)


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
    reward = "1" if is_right(wanted, answer) else "0"
    sys.stdout.write(f"the answer is {answer!r}, reward {reward}\n")
    Path(sys.argv[3]).write_text(reward + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
