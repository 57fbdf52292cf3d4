"""How the attempts of harnesses end, in the words that adapters share. Pure.

Invariants (tests/harnesses/test_ends.py): a message is at most MESSAGE_LIMIT characters of an output's end; a time limit, a
context that is full and a turn that is too long are limits of the run, never a crash.
"""

from __future__ import annotations

from whippletree.protocols import HarnessResult

MESSAGE_LIMIT = 2000  # characters


def last_words(text: str) -> str:
    """The end of an output, as much as a result's message holds."""
    return text[-MESSAGE_LIMIT:]


def timed_out(steps: int) -> HarnessResult:
    """Its process was ended at its time limit."""
    return HarnessResult(exit_status="TimedOut", steps=steps, message="ended at its time limit", ran_out="time")


def out_of_context(steps: int, message: str) -> HarnessResult:
    """The next prompt did not fit the model's context, and it gave up."""
    return HarnessResult(exit_status="ContextWindowExceeded", steps=steps, message=message, ran_out="budget")


def turn_too_long(steps: int, message: str) -> HarnessResult:
    """The model's turn was cut at the run's limit of tokens, and it gave up."""
    return HarnessResult(exit_status="OutputLimit", steps=steps, message=message, ran_out="budget")


def crashed(status: str, steps: int, message: str) -> HarnessResult:
    """It did not do its job."""
    return HarnessResult(exit_status=status, steps=steps, message=message, crashed=True)
