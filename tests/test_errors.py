"""whippletree/errors.py"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from whippletree import errors
from whippletree.errors import RequestError, WhippletreeError, words_of

CLASSES = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}


def drawn_tree() -> dict[str, str]:
    """Class → parent, as the module's header draws them."""
    assert errors.__doc__ is not None
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"^((?:│   |    )*)(?:[├└]── )?([A-Z]\w+)", line)
        if found is None or not (line.startswith(("├", "└", "│", " ")) or line == "WhippletreeError"):
            continue
        depth = len(found[1]) // 4 + (0 if line == "WhippletreeError" else 1)
        above[depth:] = [found[2]]
        parents[found[2]] = above[depth - 1] if depth else "Exception"
    return parents


def test_the_tree_in_the_header_is_the_tree():
    assert drawn_tree() == {name: kind.__mro__[1].__name__ for name, kind in CLASSES.items()}


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_every_error_carries_cause_and_next_step(kind: type[WhippletreeError]):
    error = kind("the disk is full", "make room")
    assert (error.cause, error.next_step) == ("the disk is full", "make room")
    assert str(error) == "the disk is full (make room)"
    assert str(kind("the disk is full")) == "the disk is full"
    assert kind.__doc__


def test_a_request_error_carries_its_http_status():
    error = RequestError("too long", "shorten it", status=413, code="context_length_exceeded")
    assert (error.status, error.code) == (413, "context_length_exceeded")
    assert RequestError("bad").status == 400


def test_what_the_system_says_is_told_without_number_and_path(tmp_path: Path):
    with pytest.raises(OSError, match="Errno") as caught:
        (tmp_path / "gone").read_bytes()
    assert words_of(caught.value) == "No such file or directory"
    assert words_of(OSError("the disk is odd")) == "the disk is odd"
    assert words_of(ValueError("line 3")) == "line 3"
