"""`whippletree harness check`: run the contract of one or several harnesses and print what was found."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

from whippletree.errors import ConfigurationError


def add_command(actions: Any) -> None:
    """Register `check` beside the other commands for harnesses."""
    check = actions.add_parser("check", help="run the contract of a harness in sandboxes; exit 1 where it does not hold")
    check.add_argument("names", nargs="+", metavar="NAME", help='names or "module:Class"')
    check.add_argument("--launch", default="", choices=["process", "pool"], help="how; default: the first that the adapter can")
    check.add_argument("--only", action="append", default=[], metavar="SCENARIO", help="only this scenario; may be repeated")
    check.add_argument("--limit", type=float, default=120.0, metavar="SECONDS", help="of one run (default 120)")
    check.add_argument("--keep", type=Path, metavar="DIR", help="leave the runs' records, logs and accounts in DIR/NAME")
    check.add_argument("--record", type=Path, metavar="DIR", help="write each report to DIR/NAME.json too, for the docs' table")
    check.add_argument("--json", action="store_true", help="one JSON document on standard output")
    check.add_argument("--directory", type=Path, help="where harnesses are installed; default: the user's cache folder")
    check.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    from whippletree.control.contract import check_harness
    from whippletree.control.contract.report import as_text
    from whippletree.files import write_json

    if arguments.limit <= 0:
        raise ConfigurationError(f"--limit {arguments.limit:g} is no time", "give seconds, more than 0")
    reports = []
    for name in arguments.names:

        def progress(scenario: str, name: str = name) -> None:
            print(f"{name}: {scenario}", file=sys.stderr, flush=True)

        report = asyncio.run(
            check_harness(
                name,
                directory=arguments.directory,
                launch=arguments.launch,
                only=arguments.only,
                keep=arguments.keep / name if arguments.keep else None,
                limit=arguments.limit,
                progress=progress,
            )
        )
        reports.append(report)
        if not arguments.json:
            print(as_text(report), flush=True)
        if arguments.record:
            arguments.record.mkdir(parents=True, exist_ok=True)
            write_json(arguments.record / f"{report.harness}.json", report)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(reports)).decode())
    return 0 if all(report.holds for report in reports) else 1
