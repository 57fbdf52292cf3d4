"""Ids that nothing else has."""

from __future__ import annotations

import multiprocessing
import re

from whippletree.identifiers import joined, new_id


def test_ids_have_their_form_and_differ():
    made = [new_id("c-") for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(re.fullmatch(r"c-[0-9a-f]{24}", name) for name in made)


def test_forked_processes_make_other_ids():
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        theirs = pool.map(new_id, ["c-"] * 50, chunksize=25)
    assert len({*theirs, *(new_id("c-") for _ in range(50))}) == 100


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
