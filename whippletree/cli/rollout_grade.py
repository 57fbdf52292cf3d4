"""`whippletree rollouts grade RUN_DIR`: judges score what is on record, and are compared with the tests (docs/rubrics.md).

Invariants (tests/cli/test_cli_rollout_grade.py):
- the run's record is left as it is; what was asked before, here or in the run, is not asked again;
- status 1 where an attempt got no score.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

from whippletree.cli.numbers import natural
from whippletree.configuration import Config, load
from whippletree.control.imaging import Imaging
from whippletree.control.place import attempt_directory
from whippletree.control.rubrics.config import RubricConfig, check_rubrics
from whippletree.control.rubrics.regrading import Regraded, agreements, regrade
from whippletree.control.rubrics.scoring import Record
from whippletree.errors import ConfigurationError
from whippletree.files import write_atomically
from whippletree.loop.config import RunConfig
from whippletree.loop.layout import Layout, recorded
from whippletree.store import open_store

GRADES = "grades.jsonl"  # in the run's directory


class RubricFile(Config):
    """A file of rubrics alone."""

    rubrics: tuple[RubricConfig, ...]
    """As `control.rubrics` of a run file."""

    def __post_init__(self) -> None:
        """Raises ValueError where two have one name; `convert` adds the file."""
        check_rubrics(self.rubrics)


def add_command(rollouts: Any) -> None:
    """Register `rollouts grade`."""
    parser = rollouts.add_parser("grade", help="let judges score what is on record, and compare them with the tests")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--rubrics", type=Path, metavar="FILE", help="TOML with [[rubrics]]; default: those of the run")
    parser.add_argument("--rubric", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--purpose", default="", choices=["train", "eval"], help="only these rollouts")
    parser.add_argument("--limit", type=natural, default=0, metavar="N", help="at most so many rollouts, oldest first; 0: all")
    parser.add_argument("--against", default="", metavar="SCORE", help="the score of the tests to compare with")
    parser.add_argument("--passing", type=float, default=1.0, metavar="X", help="least score of an attempt that passed")
    parser.add_argument("--json", action="store_true", help="the comparison as one JSON list")
    parser.set_defaults(run=_grade)


def _grade(arguments: argparse.Namespace) -> int:
    layout = recorded(arguments.run_dir)
    config = load(RunConfig, layout.config)
    rubrics = _chosen(arguments, config)
    found = asyncio.run(_regraded(arguments, layout, config, rubrics))
    write_atomically(layout.directory / GRADES, b"".join(msgspec.json.encode(one) + b"\n" for one in found))
    compared = agreements(found, passing=arguments.passing)
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(compared).decode() + "\n")
    else:
        from whippletree.ui.rollout import make_console
        from whippletree.ui.rubrics import print_agreements

        print_agreements(compared, found, make_console())
        print(layout.directory / GRADES)
    return 1 if any(one.score.score is None for one in found) else 0


def _chosen(arguments: argparse.Namespace, config: RunConfig) -> tuple[RubricConfig, ...]:
    rubrics = load(RubricFile, arguments.rubrics).rubrics if arguments.rubrics else config.control.rubrics
    names = [rubric.name for rubric in rubrics]
    unknown = [name for name in arguments.rubric if name not in names]
    if unknown or not rubrics:
        told = f"there is no rubric {unknown[0]!r}" if unknown else f"{arguments.run_dir} was run without rubrics"
        raise ConfigurationError(told, f"known: {', '.join(names)}" if names else "give a file with [[rubrics]] (--rubrics)")
    return tuple(rubric for rubric in rubrics if not arguments.rubric or rubric.name in arguments.rubric)


async def _regraded(
    arguments: argparse.Namespace, layout: Layout, config: RunConfig, rubrics: tuple[RubricConfig, ...]
) -> list[Regraded]:
    control = config.control
    imaging = Imaging(config.sandbox, wanted=control.images, at_once=control.images_at_once, variables=control.variables)
    try:
        with open_store(layout.store) as store:
            record = Record(
                store=store,
                read=imaging.read,
                place=lambda rollout_id, attempt: attempt_directory(layout.directory, rollout_id, attempt),
            )
            rollouts = store.rollouts(states=("succeeded",), purpose=arguments.purpose, limit=arguments.limit)
            return await regrade(record, rubrics, rollouts, layout.directory, against=arguments.against)
    finally:
        await imaging.close()
