"""`whippletree harness check`: run the contract of one or several harnesses and print what was found."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from whippletree.configuration import apply_override, check_keys, convert
from whippletree.errors import ConfigurationError, words_of
from whippletree.protocols import HarnessFacts

if TYPE_CHECKING:
    from whippletree.control.contract import Report


def add_command(actions: Any) -> None:
    """Register `check` beside the other commands for harnesses."""
    check = actions.add_parser("check", help="run the contract of a harness in sandboxes; exit 1 where it does not hold")
    check.add_argument("names", nargs="*", metavar="NAME", help='names or "module:Class"')
    check.add_argument("--all", action="store_true", help="every harness that ships and is installed, but the generic ones")
    check.add_argument("--launch", default="", choices=["process", "pool"], help="how; default: the first that the adapter can")
    check.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="a setting of the harness"
    )
    check.add_argument("--facts", type=Path, metavar="FILE", help="facts of the agent (TOML) that go before the adapter's")
    check.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only this scenario or point; may be repeated"
    )
    check.add_argument("--limit", type=float, default=120.0, metavar="SECONDS", help="of one run (default 120)")
    check.add_argument("--keep", type=Path, metavar="DIR", help="leave the runs' records, logs and accounts in DIR/NAME")
    check.add_argument("--record", type=Path, metavar="DIR", help="write each report to DIR/NAME.json too, for the docs' table")
    check.add_argument("--json", action="store_true", help="one JSON document on standard output")
    check.add_argument("--directory", type=Path, help="where harnesses are installed; default: the user's cache folder")
    check.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    from whippletree.control.contract.report import as_text
    from whippletree.files import write_json
    from whippletree.harnesses import load_harness

    names = _names(arguments)
    settings: dict[str, Any] = {}
    for item in arguments.overrides:
        apply_override(settings, item)
    for name in names:
        known = load_harness(name, arguments.directory).settings
        if known is not None:
            convert(known, settings, f"{name}: --set")
    reports = []
    for name in names:
        report = _report(name, settings, arguments)
        reports.append(report)
        if not arguments.json:
            print(as_text(report), flush=True)
        if arguments.record:
            arguments.record.mkdir(parents=True, exist_ok=True)
            write_json(arguments.record / f"{report.harness}.json", report)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(reports)).decode())
    return 0 if all(report.holds for report in reports) else 1


def _names(arguments: argparse.Namespace) -> list[str]:
    """What is to be checked. Raises ConfigurationError for options that do not go together."""
    if arguments.limit <= 0:
        raise ConfigurationError(f"--limit {arguments.limit:g} is no time", "give seconds, more than 0")
    if arguments.record and (arguments.only or arguments.overrides or arguments.facts):
        raise ConfigurationError(
            "--record writes whole reports of harnesses as they ship", "leave out --only, --set and --facts"
        )
    if bool(arguments.names) == arguments.all:
        raise ConfigurationError("which harness is to be checked?", "give names, or --all")
    if len(arguments.names) != 1 and (arguments.overrides or arguments.facts):
        raise ConfigurationError("--set and --facts are of one harness", "give one name")
    return _installed(arguments.directory) if arguments.all else list(arguments.names)


def _installed(directory: Path | None) -> list[str]:
    """The harnesses that ship and can run as they are; what is left out is named on standard error."""
    from whippletree.harnesses import NAMES, load_harness
    from whippletree.harnesses.installing import is_installed
    from whippletree.protocols import ConfiguredHarness

    found = []
    for name in sorted(NAMES):
        harness = load_harness(name, directory)
        if isinstance(harness, ConfiguredHarness):
            print(f"{name}: left out, it starts what settings name", file=sys.stderr)
        elif is_installed(harness, directory):
            found.append(name)
        else:
            print(f"{name}: left out, it is not installed", file=sys.stderr)
    return found


def _report(name: str, settings: dict[str, Any], arguments: argparse.Namespace) -> Report:
    from whippletree.control.contract import check_harness

    def progress(scenario: str) -> None:
        print(f"{name}: {scenario}", file=sys.stderr, flush=True)

    return asyncio.run(
        check_harness(
            name,
            directory=arguments.directory,
            launch=arguments.launch,
            settings=settings,
            facts=_facts(name, arguments) if arguments.facts else None,
            only=arguments.only,
            keep=arguments.keep / name if arguments.keep else None,
            limit=arguments.limit,
            progress=progress,
        )
    )


def _facts(name: str, arguments: argparse.Namespace) -> HarnessFacts:
    """The adapter's facts with those of the file over them. Raises ConfigurationError that names the file."""
    from whippletree.harnesses import load_harness

    path = arguments.facts
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read: {words_of(error)}", "give a TOML file with keys of HarnessFacts"
        ) from error
    check_keys(HarnessFacts, data, str(path), "")
    known = msgspec.to_builtins(load_harness(name, arguments.directory).facts)
    try:
        return msgspec.convert(known | data, HarnessFacts)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: {error}", "whippletree/protocols/harnesses.py describes HarnessFacts") from error
