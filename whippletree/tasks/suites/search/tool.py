"""Search a corpus: `search WORDS...` lists the best documents, `read_doc ID` prints one.

Both are this one file under two names. It runs inside a sandbox, under its own Python, with the standard library alone: BM25
is that of SQLite's full-text index (FTS5), built in memory at each call, which takes milliseconds for a small corpus.

Invariants (tests/tasks/test_suites_search.py):
- documents come by BM25, equals by id; words are stemmed, and any of them may match;
- no word of a query, whatever signs it holds, is taken for syntax.
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from pathlib import Path

CORPUS = Path("usr/local/share/corpus.jsonl")
SHOWN = 5  # documents
WORDS = 24  # of an excerpt


def load(root: Path) -> list[dict[str, str]]:
    """The documents: id, title, text."""
    with (root / CORPUS).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def search(documents: list[dict[str, str]], query: str, shown: int = SHOWN) -> list[tuple[str, str, str]]:
    """(id, title, excerpt) of the best documents for a query."""
    words = re.findall(r"\w+", query)
    if not words:
        return []
    database = sqlite3.connect(":memory:")
    try:
        database.execute("CREATE VIRTUAL TABLE docs USING fts5(id UNINDEXED, title, body, tokenize = 'porter unicode61')")
        database.executemany("INSERT INTO docs VALUES (:id, :title, :text)", documents)
        wanted = f"SELECT id, title, snippet(docs, 2, '', '', '...', {WORDS}) FROM docs"
        order = "WHERE docs MATCH ? ORDER BY bm25(docs), id LIMIT ?"
        return list(database.execute(f"{wanted} {order}", (" OR ".join(f'"{word}"' for word in words), shown)))
    finally:
        database.close()


def main() -> int:
    """Answer the command line."""
    program = Path(sys.argv[0])
    documents = load(program.resolve().parents[3])
    asked = " ".join(sys.argv[1:])
    if program.name == "read_doc":
        texts = [f"{document['title']}\n{document['text']}" for document in documents if document["id"] == asked]
        sys.stdout.write(f"{texts[0]}\n" if texts else f"there is no document {asked!r}\n")
        return 0 if texts else 1
    found = search(documents, asked)
    sys.stdout.writelines(f"{name}  {title}: {excerpt}\n" for name, title, excerpt in found)
    if not found:
        sys.stdout.write("nothing found\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
