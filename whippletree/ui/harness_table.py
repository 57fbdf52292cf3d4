"""The table of harnesses in docs/harnesses.md, from the adapters: `python -m whippletree.ui.harness_table docs/harnesses.md`.

Invariants (tests/ui/test_harness_table.py): the page has the table that the adapters give; what is around it stays as it is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from whippletree.harnesses import NAMES, load_harness
from whippletree.protocols import Harness

BEGIN = "<!-- generated: python -m whippletree.ui.harness_table docs/harnesses.md -->"
END = "<!-- end -->"
_HEAD = ("harness", "version", "package", "dialects", "launch", "fixed prompt", "varied by settings", "sub-agents, compaction")


def table() -> str:
    """The facts of every shipped harness, one row each, and what it is known for below."""
    found = [load_harness(name) for name in sorted(NAMES)]
    rows = [_HEAD, ("---",) * len(_HEAD), *(_row(harness) for harness in found)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    for harness in found:
        facts = harness.facts
        told = [f"second request {facts.second_request}", f"the model's turn comes back {facts.sampled_turn}"]
        told += [f"side calls: {', '.join(facts.side_calls)}"] if facts.side_calls else []
        told += [f"exit code {facts.exit_code.rstrip(chr(46))}"] if facts.exit_code else []
        lines += ["", f"**{harness.name}**: {'; '.join(told)}.", *(f"- {note.rstrip('.')}." for note in facts.notes)]
    return "\n".join(line.replace("<", "&lt;") for line in lines)


def _row(harness: Harness) -> tuple[str, ...]:
    facts, package = harness.facts, harness.package
    more = [word for word, is_so in (("sub-agents", facts.subagents), ("compacts", facts.compacts)) if is_so]
    return (
        f"`{harness.name}`",
        harness.version,
        f"{package.kind} `{package.name}`, {package.size_mb} MB" if package else "none",
        ", ".join(facts.dialects) + ("" if facts.streams else " (whole)"),
        ", ".join(facts.launches),
        f"{facts.fixed_prompt_chars:,} characters" if facts.fixed_prompt_chars else "its own",
        ", ".join(facts.variations) or "nothing",
        ", ".join(more) or "neither",
    )


def renewed(page: str) -> str:
    """The page with the table as it is now. Raises ValueError where the marks are missing."""
    if page.count(BEGIN) != 1 or END not in page.partition(BEGIN)[2]:
        raise ValueError(f"the page has no place for the table: {BEGIN} ... {END}")
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}\n{table()}\n{END}", page, flags=re.DOTALL)


def main(path: Path) -> None:
    """Renew the table in a page."""
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
