"""examples/expert.py: of tasks with one instruction it takes the one that is on the screen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from expert import Way, next_command

TASK = "submit the path of the file heath"


@pytest.mark.parametrize("answer", ["noble/heath", "urchin/noble/heath", "urchin/heath"])
def test_the_answer_that_was_just_printed_is_handed_in(answer: str):
    find = "find . -name heath"
    ways = [Way([find, f"submit {path}"], frozenset()) for path in ("urchin/noble/heath", "noble/heath", "urchin/heath")]
    said = [{"role": "user", "content": f"{TASK}\nHand it in with: submit ANSWER"}]
    assert next_command({TASK: ways}, said) == find
    said += [{"role": "assistant", "content": find}, {"role": "tool", "content": f"./{answer}"}]
    assert next_command({TASK: ways}, said) == f"submit {answer}"
    assert next_command({TASK: ways}, [*said, {"role": "assistant", "content": "done"}]) == ""
