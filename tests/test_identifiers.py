"""Ids that nothing else has."""

from __future__ import annotations

import re
import subprocess
import sys

from whippletree.identifiers import joined, new_id


def test_ids_have_their_form_and_differ():
    made = [new_id("c-") for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(re.fullmatch(r"c-[0-9a-f]{24}", name) for name in made)


FORKED = """
import os
from whippletree.identifiers import new_id

new_id("c-")  # it is in use before it is forked
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        children = []
        break
    children.append(child)
os.write(1, "".join(f"{new_id('c-')}\\n" for _ in range(50)).encode())
for child in children:
    os.waitpid(child, 0)
"""


def test_forked_processes_make_other_ids():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    ids = done.stdout.split()
    assert len(set(ids)) == len(ids) == 3 * 50


def test_joined_names_differ_however_their_parts_are_cut():
    assert joined([("s", "t-1"), ("s", "t-2"), ("r", "t-1")]) == {
        ("s", "t-1"): "s-t-1",
        ("s", "t-2"): "s-t-2",
        ("r", "t-1"): "r-t-1",
    }
    names = joined([("mini", "text-1"), ("mini-text", "1"), ("mini", "2"), ("mini", "2")])
    assert names == joined([("mini-text", "1"), ("mini", "2"), ("mini", "text-1")])
    assert len(set(names.values())) == len(names) == 3
    assert all(name.startswith("mini-text-1-") for part, name in names.items() if part != ("mini", "2"))
