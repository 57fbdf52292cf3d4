"""`whippletree tasks make KIND DIRECTORY`: write the tasks of a generated family.

Invariants (tests/cli/test_cli_task_making.py): each kind of a run file's [sources.tasks] that is generated can be made by name,
and a second call leaves what the first wrote.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whippletree.cli.task_injecting import add_bugs
from whippletree.configuration import Config, convert
from whippletree.tasks.suites.generated import FAMILIES, write_family


def add_making(tasks: Any) -> None:
    """Register `tasks make`."""
    make = tasks.add_parser("make", help="write the tasks of a generated family")
    kinds = make.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind, (settings, text) in FAMILIES.items():
        parser = kinds.add_parser(kind, help=text)
        parser.add_argument("directory", type=Path)
        _add_family(parser, settings)
        parser.set_defaults(run=_make, settings=settings)
    add_bugs(kinds)


def _add_family(parser: argparse.ArgumentParser, settings: type[Config]) -> None:
    family: Any = settings()
    for name, text in (("train", "training tasks"), ("heldout", "held-out tasks"), ("seed", "draws everything")):
        default = getattr(family, name)
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text}; default: {default}")
    if "worlds" in settings.__struct_fields__:
        parser.add_argument("--worlds", type=int, default=family.worlds, metavar="N", help="corpora of training tasks")
        parser.add_argument("--plain", action="store_true", help="plain corpora, for models that know few words")
    lists: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("families", str),
        ("forms", str),
        ("grades", int),
        ("steps", int),
    )
    for name, kind in lists:
        if name in settings.__struct_fields__:
            default = " ".join(map(str, getattr(family, name)))
            parser.add_argument(f"--{name}", type=kind, nargs="+", default=None, metavar="X", help=f"default: {default}")


def _make(arguments: argparse.Namespace) -> int:
    given = {name: getattr(arguments, name) for name in ("train", "heldout", "seed")}
    given |= {
        name: found
        for name in ("families", "forms", "grades", "steps", "worlds", "plain")
        if (found := getattr(arguments, name, None)) is not None
    }
    family = convert(arguments.settings, given, f"tasks make {arguments.kind}")
    train, heldout = write_family(arguments.kind, family, arguments.directory)
    print(f"{len(train)} training tasks and {len(heldout)} held-out tasks in {arguments.directory}")
    return 0
