"""What the documentation says, taken apart: fenced blocks, inline code, links, commands."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "examples").rglob("*.md"),
        *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ]
)
SHELL = ("", "sh", "bash", "console")


@dataclass(frozen=True)
class Block:
    """A fenced block. `marks`: what an HTML comment right before it says, `<!-- test: run -->` or `<!-- file: a.toml -->`."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Fenced blocks of a page, in order. Indented fences (in lists) count, with their indentation taken off."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opening = re.match(r"^( *)```(\w*)\s*$", lines[number])
        if opening is None:
            number += 1
            continue
        end = next((n for n in range(number + 1, len(lines)) if lines[n].strip() == "```"), None)
        assert end is not None, f"{page.name}:{number + 1}: a fence is not closed"
        indent = len(opening[1])
        text = "\n".join(line[indent:] for line in lines[number + 1 : end]) + "\n"
        above = next((line for line in reversed(lines[:number]) if line.strip()), "")
        marks = dict(re.findall(r"<!-- (test|file): (.*?) -->", above))
        found.append(Block(page, number + 1, opening[2], text, marks))
        number = end + 1
    return found


def prose(page: Path) -> str:
    """The page without fenced blocks."""
    return re.sub(r"^ *```.*?^ *```\s*$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def inline(page: Path) -> list[str]:
    """Inline code."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(page))]


def links(page: Path) -> list[str]:
    """Targets of links and pictures that are not addresses."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def commands(block: Block, program: str) -> list[list[str]]:
    """Arguments of each call of a program in a shell block. In a block without language, prose may follow after two blanks."""
    if block.language not in SHELL:
        return []
    found: list[list[str]] = []
    for raw in block.text.replace("\\\n", " ").splitlines():
        line = raw.removeprefix("$ ")
        if not re.match(rf"(\S*/)?{program}(\s|$)", line):
            continue
        if not block.language:
            line = re.split(r"(?<=\S) {2,}(?=\S)", line)[0]
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        words = []
        for word in lexer:
            if set(word) <= set(";&|<>"):
                break
            words.append(word)
        found.append(words[1:])
    return found
