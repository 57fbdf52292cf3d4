"""Commands for harnesses: list, show, install, check."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from whippletree.cli import harness_check
from whippletree.configuration import dump
from whippletree.protocols import Harness, HarnessFacts, Package
from whippletree.types import Struct


class HarnessReport(Struct):
    """One harness, as `--json` prints it. `folder`: where it is installed, or would be ("" where it needs no folder).

    Example: HarnessReport(name="codex", version="0.171.0", installed=True, package=Package(...), facts=HarnessFacts(...))
    """

    name: str
    version: str
    installed: bool
    facts: HarnessFacts
    package: Package | None = None
    folder: str = ""


def add_commands(commands: Any) -> None:
    """Register the commands of this module."""
    harness = commands.add_parser("harness", help="list, show and install harnesses").add_subparsers(
        dest="action", required=True
    )
    listing = harness.add_parser("list", help="names, versions, and whether they are installed")
    listing.set_defaults(run=_list)
    show = harness.add_parser("show", help="what is known of one harness, and its settings")
    show.add_argument("name")
    show.set_defaults(run=_show)
    install = harness.add_parser("install", help="install pinned versions, each into a folder of its own")
    install.add_argument("names", nargs="+", metavar="NAME", help='names, or "all"')
    install.add_argument("--verify", action="store_true", help="compare what is installed with what was; installs nothing")
    install.set_defaults(run=_install)
    harness_check.add_command(harness)
    for parser in (listing, show, install):
        parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
        parser.add_argument("--directory", type=Path, help="where harnesses are installed; default: the user's cache folder")


def _report(harness: Harness) -> HarnessReport:
    from whippletree.harnesses.installing import is_installed
    from whippletree.harnesses.packages import Packaged

    folder = str(harness.folder) if isinstance(harness, Packaged) else ""
    directory = harness.directory if isinstance(harness, Packaged) else None
    return HarnessReport(
        name=harness.name,
        version=harness.version,
        installed=is_installed(harness, directory),
        facts=harness.facts,
        package=harness.package,
        folder=folder,
    )


def _print_json(record: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(record)).decode())


def _list(arguments: argparse.Namespace) -> int:
    from whippletree.harnesses import NAMES, load_harness

    found = [_report(load_harness(name, arguments.directory)) for name in sorted(NAMES)]
    if arguments.json:
        _print_json(found)
        return 0
    rows = [("harness", "version", "launch", "package", "state")]
    for report in found:
        how = f"{report.package.kind}, {report.package.size_mb} MB" if report.package else "none"
        state = ("installed" if report.installed else "not installed") if report.package else "ready"
        rows.append((report.name, report.version, "/".join(report.facts.launches), how, state))
    for name, version, launches, how, state in rows:
        print(f"{name:16} {version:10} {launches:13} {how:16} {state}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from whippletree.harnesses import load_harness

    harness = load_harness(arguments.name, arguments.directory)
    report = _report(harness)
    if arguments.json:
        _print_json(report)
        return 0
    print(f"{report.name} {report.version}")
    if report.folder:
        print(f"{'installed' if report.installed else 'not installed'}: {report.folder}")
    print()
    facts = {field: value for field, value in msgspec.structs.asdict(report.facts).items() if field != "probe"}
    for field, value in facts.items():
        for text in value if field == "notes" else (_plain(value),):
            print(f"{field.replace('_', ' '):20} {text}")
    if harness.settings is not None and harness.settings.__struct_fields__:
        print(f"\n{dump(harness.settings())}", end="")
    return 0


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return str(value) or "none"


def _install(arguments: argparse.Namespace) -> int:
    from whippletree.harnesses import NAMES, load_harness
    from whippletree.harnesses.installing import install, verify

    names = arguments.names
    if names == ["all"]:
        loaded = [load_harness(name, arguments.directory) for name in sorted(NAMES)]
        names = [harness.name for harness in loaded if harness.package is not None and harness.package.kind != "extra"]
    reports, whole = [], True
    for name in names:
        harness = load_harness(name, arguments.directory)
        if arguments.verify:
            same = verify(harness, arguments.directory)
            whole = whole and same
            print(f"{name}: {'as it was installed' if same else 'not as it was installed'}", file=sys.stderr)
        else:
            folder = install(harness, arguments.directory)
            print(f"{name} {harness.version}: {folder}", file=sys.stderr if arguments.json else sys.stdout)
        reports.append(_report(harness))
    if arguments.json:
        _print_json(reports)
    return 0 if whole else 1
