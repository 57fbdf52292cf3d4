"""Commands that look: config, rollouts, report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from whippletree.cli import rollout_grade
from whippletree.cli.checking import check_harnesses
from whippletree.cli.numbers import natural
from whippletree.configuration import Config, apply_override, convert, dump, load
from whippletree.errors import ConfigurationError
from whippletree.loop.config import RunConfig
from whippletree.loop.layout import Layout, recorded
from whippletree.protocols import Store
from whippletree.store import open_store
from whippletree.traces import Trace
from whippletree.types import Rollout


def add_commands(commands: Any) -> None:
    """Register the commands of this module."""
    _add_config(commands)
    _add_rollouts(commands)
    report = commands.add_parser("report", help="write report.html and report.png of a run, or tables and picture of a grid")
    report.add_argument("run_dir", type=Path)
    report.set_defaults(run=_report)


# --- config ----------------------------------------------------------------------------------------------------------


def _add_config(commands: Any) -> None:
    config = commands.add_parser("config", help="show or check a file").add_subparsers(dest="action", required=True)
    show = config.add_parser("show", help="print every key with its documentation")
    show.add_argument("run_file", type=Path, nargs="?", help="a run file; left out: the defaults")
    check = config.add_parser("check", help="load it and say whether it is right")
    check.add_argument("run_file", type=Path)
    for parser, run in ((show, _config_show), (check, _config_check)):
        parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override one key")
        parser.set_defaults(run=run)


def _config_show(arguments: argparse.Namespace) -> int:
    config: Config
    if arguments.run_file is not None:
        config = load_any_file(arguments.run_file, arguments.overrides)
    else:
        data: dict[str, Any] = {"sources": [{"name": "trail", "tasks": {"kind": "trail"}}]}
        for item in arguments.overrides:
            apply_override(data, item)
        config = convert(RunConfig, data, "the defaults")
    print(dump(config), end="")
    return 0


def _config_check(arguments: argparse.Namespace) -> int:
    load_any_file(arguments.run_file, arguments.overrides)
    print(f"{arguments.run_file}: ok")
    return 0


def load_any_file(path: Path, overrides: Sequence[str]) -> Config:
    """A run file, a grid file (with a table [grid]) or an SFT file (with `data`), checked. Raises ConfigurationError."""
    from whippletree.cli.grid import holds, load_grid_file
    from whippletree.loop.sft.config import SftConfig

    if holds(path, "grid"):
        return load_grid_file(path, overrides)
    if holds(path, "data"):
        tuning = load(SftConfig, path, overrides)
        tuning.check()
        return tuning
    return load_run_file(path, overrides)


def load_run_file(path: Path, overrides: Sequence[str]) -> RunConfig:
    """A run file, with the settings of its harnesses and of its loss checked too. Raises ConfigurationError."""
    config = load(RunConfig, path, overrides)
    config.learner.check(config.loop.steps)
    check_harnesses([source.harness for source in config.sources], f"{path}: sources", "harness.settings")
    return config


# --- rollouts --------------------------------------------------------------------------------------------------------


def _add_rollouts(commands: Any) -> None:
    rollouts = commands.add_parser("rollouts", help="list and read rollouts").add_subparsers(dest="action", required=True)
    listing = rollouts.add_parser("list", help="one line per rollout")
    listing.add_argument("run_dir", type=Path)
    listing.add_argument("--state", default="", choices=["queuing", "running", "succeeded", "failed"], help="only these")
    listing.add_argument("--purpose", default="", choices=["train", "eval"], help="only these")
    listing.add_argument("--limit", type=natural, default=50, help="at most so many, oldest first; 0: all")
    listing.set_defaults(run=_rollouts_list)
    show = rollouts.add_parser("show", help="one rollout: phases, calls, messages, tokens")
    show.add_argument("run_dir", type=Path)
    show.add_argument("rollout_id")
    show.add_argument("--tokens", action="store_true", help="every token with its logprob and policy version")
    show.set_defaults(run=_rollouts_show)
    export = rollouts.add_parser("export", help="one rollout as an ATIF document, on standard output")
    export.add_argument("run_dir", type=Path)
    export.add_argument("rollout_id")
    export.add_argument("--no-tokens", action="store_true", help="leave out token ids and logprobs")
    export.set_defaults(run=_rollouts_export)
    compare = rollouts.add_parser("reconcile", help="compare with the harness's own trajectory; exit 1 where they disagree")
    compare.add_argument("run_dir", type=Path)
    compare.add_argument("rollout_id")
    compare.add_argument("trajectory", type=Path, nargs="?", help="an ATIF document; default: the one kept with the rollout")
    compare.set_defaults(run=_rollouts_reconcile)

    rollout_grade.add_command(rollouts)
    shell = rollouts.add_parser("shell", help="open the machine of an attempt, as its snapshot has it")
    shell.add_argument("run_dir", type=Path)
    shell.add_argument("rollout_id")
    shell.add_argument(
        "--attempt", type=natural, default=0, metavar="N", help="which attempt; default: the last with a snapshot"
    )
    shell.add_argument("--user", default="", metavar="USER", help="as whom, by name or number; default: as the agent")
    shell.add_argument("--files", action="store_true", help="files only, where the processes cannot be restored here")
    shell.set_defaults(run=_rollouts_shell)


def _open(run_dir: Path) -> Store:
    return open_store(recorded(run_dir).store)


def _rollouts_list(arguments: argparse.Namespace) -> int:
    from whippletree.ui.rollout import make_console, print_rollouts

    store = _open(arguments.run_dir)
    states = (arguments.state,) if arguments.state else ()
    try:
        found = store.rollouts(states=states, purpose=arguments.purpose, limit=arguments.limit)
        print_rollouts(store, found, make_console())
    finally:
        store.close()
    return 0


def _rollouts_show(arguments: argparse.Namespace) -> int:
    from whippletree.ui.rollout import make_console, print_rollout

    store = _open(arguments.run_dir)
    try:
        print_rollout(store, Layout(arguments.run_dir), arguments.rollout_id, tokens=arguments.tokens, console=make_console())
    finally:
        store.close()
    return 0


def _read_trace(arguments: argparse.Namespace) -> tuple[Rollout, Trace]:
    from whippletree.traces import load_trace
    from whippletree.ui.rollout import traces_config

    store = _open(arguments.run_dir)
    try:
        rollout = store.rollout(arguments.rollout_id)
        return rollout, load_trace(store, rollout, traces_config(Layout(arguments.run_dir)))
    finally:
        store.close()


def _rollouts_export(arguments: argparse.Namespace) -> int:
    from whippletree.harnesses import NAMES, load_harness
    from whippletree.traces import export_atif

    rollout, trace = _read_trace(arguments)
    name = rollout.spec.harness
    version = load_harness(name).version if name in NAMES else "unknown"
    print(msgspec.json.encode(export_atif(trace, rollout, version=version, tokens=not arguments.no_tokens)).decode())
    return 0


def _rollouts_reconcile(arguments: argparse.Namespace) -> int:
    from whippletree.traces import read_account, reconcile
    from whippletree.ui.conversation import printable

    rollout, trace = _read_trace(arguments)
    path = arguments.trajectory or _kept_account(arguments.run_dir, rollout)
    found = reconcile(trace, read_account(path))
    print(f"{found.turns} turns of the harness, {found.calls} captured calls, {len(found.pairs)} pairs")
    for finding in found.findings:
        print(f"{finding.level:5} {finding.code}: {printable(finding.message)}")
    return 1 if found.worst == "FATAL" else 0


def _kept_account(run_dir: Path, rollout: Rollout) -> Path:
    """Where the account of a rollout's last attempt is kept."""
    from whippletree.control.place import attempt_directory
    from whippletree.control.records import ACCOUNT

    path = attempt_directory(run_dir, rollout.spec.rollout_id, rollout.attempt) / ACCOUNT
    if not path.is_file():
        cause = f"rollout {rollout.spec.rollout_id} has no account of its harness at {path}"
        raise ConfigurationError(cause, "give a document, or see `whippletree harness show` for whether the harness keeps one")
    return path


def _rollouts_shell(arguments: argparse.Namespace) -> int:
    from whippletree.cli.rollout_shell import rollouts_shell

    store = _open(arguments.run_dir)
    try:
        return rollouts_shell(arguments, store)
    finally:
        store.close()


def _report(arguments: argparse.Namespace) -> int:
    from whippletree.cli.grid import report_grid
    from whippletree.loop.grid.running import GridLayout
    from whippletree.ui.plots import NO_PICTURE
    from whippletree.ui.report import write_report

    if GridLayout(arguments.run_dir).config.is_file():
        return report_grid(arguments.run_dir)
    page, picture = write_report(arguments.run_dir)
    print(f"{page}\n{picture or NO_PICTURE}")
    return 0
