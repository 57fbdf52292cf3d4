"""What a harness is told of a prompt that does not fit: harnesses know such an answer by its words and numbers."""

from __future__ import annotations

import re

from whippletree.errors import RequestError
from whippletree.types import Struct

CODE = "context_length_exceeded"


class Overflow(Struct):
    """Tokens of the prompt, and the most that fit. Example: Overflow(prompt=9000, limit=8192)"""

    prompt: int
    limit: int


def overflow_of(error: RequestError) -> Overflow | None:
    """The two numbers that the cause names; None when it does not name just two. The prompt is never the smaller one."""
    numbers = sorted(int(text) for text in re.findall(r"\d{1,15}", error.cause))
    return Overflow(prompt=numbers[1], limit=numbers[0]) if len(numbers) == 2 else None
