"""What run files and grid files have in common, checked.

Invariants (tests/cli/test_cli.py): an unknown harness, or a setting that it does not have, is one line that names its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from whippletree.configuration import convert
from whippletree.loop.config import HarnessSection


def check_harnesses(sections: Sequence[HarnessSection], origin: str, key: str) -> None:
    """The harnesses are known and their settings are right. Raises ConfigurationError that names origin, number and key."""
    from whippletree.harnesses import load_harness

    for number, section in enumerate(sections):
        settings = load_harness(section.name).settings
        if settings is not None:
            convert(settings, section.settings, f"{origin}.{number}.{key}")
            for variant, over in section.variants.items():
                convert(settings, section.settings | over, f"{origin}.{number}.{key} with variant {variant}")
