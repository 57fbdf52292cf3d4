"""Commands that look: tasks, harness, config, rollouts, report."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import msgspec

from whippletree.configuration import dump, load
from whippletree.errors import ConfigurationError
from whippletree.loop.config import RunConfig
from whippletree.loop.layout import Layout
from whippletree.protocols import Store
from whippletree.store import open_store

NO_GATEWAY = ("127.0.0.1", 9)  # sandboxes of a task check are made without a network, so this is never used


def add_commands(commands: Any) -> None:
    """Register the commands of this module."""
    _add_tasks(commands)
    _add_harness(commands)
    _add_config(commands)
    _add_rollouts(commands)
    report = commands.add_parser("report", help="write report.html and report.png of a run")
    report.add_argument("run_dir", type=Path)
    report.set_defaults(run=_report)


# --- tasks -----------------------------------------------------------------------------------------------------------


def _add_tasks(commands: Any) -> None:
    tasks = commands.add_parser("tasks", help="make, check and show tasks").add_subparsers(dest="action", required=True)
    make = tasks.add_parser("make", help="write the tasks of a generated family")
    make.add_argument("directory", type=Path)
    make.add_argument("--train", type=int, default=64)
    make.add_argument("--heldout", type=int, default=48)
    make.add_argument("--seed", type=int, default=0)
    make.set_defaults(run=_tasks_make)
    check = tasks.add_parser("check", help="oracle passes, doing nothing fails")
    check.add_argument("paths", type=Path, nargs="+", metavar="TASK")
    check.set_defaults(run=_tasks_check)
    show = tasks.add_parser("show", help="print what was read of a task")
    show.add_argument("path", type=Path)
    show.set_defaults(run=_tasks_show)


def _tasks_make(arguments: argparse.Namespace) -> int:
    from whippletree.tasks.config import TrailFamily
    from whippletree.tasks.trail import write_tasks

    family = TrailFamily(train=arguments.train, heldout=arguments.heldout, seed=arguments.seed)
    train, heldout = write_tasks(arguments.directory, family)
    print(f"{len(train)} training tasks and {len(heldout)} held-out tasks in {arguments.directory}")
    return 0


def _tasks_check(arguments: argparse.Namespace) -> int:
    from whippletree.sandboxes import SandboxConfig, create
    from whippletree.tasks import load_task
    from whippletree.tasks.checks import check_task

    failures = 0
    for path in arguments.paths:
        task = load_task(path)
        result = asyncio.run(check_task(task, lambda spec: create(SandboxConfig(), spec, gateway=NO_GATEWAY)))
        failures += bool(result.problems)
        print(f"{'FAIL' if result.problems else 'ok  '} {path}{'; '.join(['', *result.problems])}")
    return 1 if failures else 0


def _tasks_show(arguments: argparse.Namespace) -> int:
    from whippletree.tasks import load_task

    print(msgspec.json.format(msgspec.json.encode(load_task(arguments.path))).decode())
    return 0


# --- harness ---------------------------------------------------------------------------------------------------------


def _add_harness(commands: Any) -> None:
    harness = commands.add_parser("harness", help="list and show harness adapters").add_subparsers(dest="action", required=True)
    listing = harness.add_parser("list", help="names and versions")
    listing.set_defaults(run=_harness_list)
    show = harness.add_parser("show", help="settings of one harness")
    show.add_argument("name")
    show.set_defaults(run=_harness_show)


def _harness_list(_: argparse.Namespace) -> int:
    from whippletree.harnesses import NAMES, load_harness

    for name in sorted(NAMES):
        print(f"{name} {load_harness(name).version}")
    return 0


def _harness_show(arguments: argparse.Namespace) -> int:
    from whippletree.configuration import field_docs
    from whippletree.harnesses import load_harness
    from whippletree.harnesses.config import SETTINGS

    harness = load_harness(arguments.name)
    print(f"{harness.name} {harness.version}")
    kind = SETTINGS.get(harness.name)
    for name, text in field_docs(kind).items() if kind is not None else ():
        print(f"  {name}: {text}")
    return 0


# --- config ----------------------------------------------------------------------------------------------------------


def _add_config(commands: Any) -> None:
    config = commands.add_parser("config", help="show or check a run file").add_subparsers(dest="action", required=True)
    for action, text in (("show", "print every key with its documentation"), ("check", "load it and say whether it is right")):
        parser = config.add_parser(action, help=text)
        parser.add_argument("run_file", type=Path)
        parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c")
        parser.set_defaults(run=_config)


def _config(arguments: argparse.Namespace) -> int:
    config = load(RunConfig, arguments.run_file, tuple(arguments.overrides))
    print(dump(config) if arguments.action == "show" else f"{arguments.run_file}: ok")
    return 0


# --- rollouts --------------------------------------------------------------------------------------------------------


def _add_rollouts(commands: Any) -> None:
    rollouts = commands.add_parser("rollouts", help="list and read rollouts").add_subparsers(dest="action", required=True)
    listing = rollouts.add_parser("list", help="one line per rollout")
    listing.add_argument("run_dir", type=Path)
    listing.add_argument("--state", default="", choices=["", "queuing", "running", "succeeded", "failed"])
    listing.add_argument("--purpose", default="", choices=["", "train", "eval"])
    listing.add_argument("--limit", type=int, default=50, help="at most so many, oldest first; 0: all")
    listing.set_defaults(run=_rollouts_list)
    show = rollouts.add_parser("show", help="one rollout: phases, calls, messages, tokens")
    show.add_argument("run_dir", type=Path)
    show.add_argument("rollout_id")
    show.add_argument("--tokens", action="store_true", help="every token with its logprob and policy version")
    show.set_defaults(run=_rollouts_show)


def _open(run_dir: Path) -> Store:
    layout = Layout(run_dir)
    if not layout.store.is_dir():
        raise ConfigurationError(f"{run_dir} has no store", "give the directory of a run, for example runs/demo")
    return open_store(layout.store)


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


def _report(arguments: argparse.Namespace) -> int:
    from whippletree.ui.report import write_report

    page, picture = write_report(arguments.run_dir)
    print(f"{page}\n{picture}")
    return 0
