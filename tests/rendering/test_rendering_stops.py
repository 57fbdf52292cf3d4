"""Stop strings, however the text is split."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from whippletree.rendering.stops import StopFinder, overlap

letters = st.text(alphabet="abc", max_size=12)
stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3)


def reference(text: str, stops: list[str]) -> tuple[str, str]:
    """By definition: the stop string that is complete first, character by character; the longer of two that are then."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, ""


@given(text=letters, stops=stops, cuts=st.lists(st.integers(0, 12), max_size=5))
def test_any_split_lets_the_same_text_through(text: str, stops: list[str], cuts: list[int]) -> None:
    finder = StopFinder(stops)
    places = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    through = "".join(finder.feed(text[a:b]) for a, b in pairwise(places)) + finder.flush()
    assert (through, finder.stopped) == reference(text, stops)


@given(text=letters, stops=stops)
def test_only_what_may_begin_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    finder = StopFinder(stops)
    through = finder.feed(text)
    if not finder.stopped:
        held = text[len(through) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_text_after_a_stop_string_is_dropped() -> None:
    finder = StopFinder(["END"])
    assert [finder.feed(piece) for piece in ("a E", "N", "D b", "c")] == ["a ", "", "", ""]
    assert finder.stopped == "END"
    assert finder.flush() == ""


def test_overlap_is_the_longest_proper_beginning() -> None:
    assert [overlap(text, "</x>") for text in ("a</", "a<", "</x>", "", "</<")] == [2, 1, 0, 0, 1]
