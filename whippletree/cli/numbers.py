"""Numbers of the command line: one that makes no sense is refused where it is read.

Invariants (tests/cli/test_cli_numbers.py): a number below its least is an error that names the option, before anything is read
or written.
"""

from __future__ import annotations

import argparse
import math


def natural(text: str) -> int:
    """A whole number from 0 on. Raises ArgumentTypeError."""
    return _whole(text, 0)


def count(text: str) -> int:
    """A whole number from 1 on. Raises ArgumentTypeError."""
    return _whole(text, 1)


def amount(text: str) -> float:
    """A finite number from 0 on. Raises ArgumentTypeError."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or found < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return found


def seconds(text: str) -> float:
    """A time, more than 0. Raises ArgumentTypeError."""
    found = amount(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give seconds, more than 0")
    return found


def _whole(text: str, least: int) -> int:
    try:
        found = int(text)
    except ValueError:
        found = least - 1
    if found < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
    return found
