"""`whippletree tasks inject REPOSITORY` and `tasks make bugs`: bugs put into a repository, each verified in a sandbox.

Invariants (tests/cli/test_cli_task_injecting.py):
- each decision is told as it is made, and how many were kept and dropped, by reason, at the end;
- status 1 when no task was kept; a second call goes on with the first one's journal.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
from pathlib import Path
from typing import Any

import msgspec

from whippletree.cli.task_shell import NO_GATEWAY
from whippletree.configuration import convert
from whippletree.tasks.bench import MakeSandbox
from whippletree.tasks.injecting.config import Injection, Testing
from whippletree.tasks.journal import Decision, Tally
from whippletree.tasks.suites.config import BugsFamily


def add_injecting(tasks: Any) -> None:
    """Register `tasks inject`."""
    parser = tasks.add_parser("inject", help="put bugs into a git repository and write the tasks to mend them")
    parser.add_argument("repository", type=Path)
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="where tasks and journal are written")
    parser.add_argument("--name", default="", help="of the repository in task names; default: its directory's")
    plain = Injection()
    for name, text in (
        ("count", "tasks to make"),
        ("seed", "draws the order of candidates"),
        ("per_function", "tasks from one function, at most"),
        ("most_tests", "tests of one task, at most"),
    ):
        default = getattr(plain, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", dest=name, type=int, default=default, metavar="N", help=f"{text}; default: {default}"
        )
    parser.add_argument("--commit", default=plain.commit, help="whose files are taken; default: HEAD")
    parser.add_argument(
        "--edits", type=int, nargs="+", default=list(plain.edits), metavar="N", help="edits of one bug, in turn"
    )
    parser.add_argument("--sources", nargs="+", default=list(plain.sources), metavar="PATTERN", help="files that get bugs")
    parser.add_argument("--tests", nargs="+", default=list(plain.tests), metavar="PATTERN", help="files that are tests")
    testing = Testing()
    parser.add_argument("--framework", default=testing.framework, help="unittest or pytest; default: unittest")
    parser.add_argument("--start", default=testing.start, metavar="DIR", help="where tests are looked for; default: .")
    parser.add_argument("--python-path", nargs="+", default=list(testing.python_path), metavar="DIR", help="default: .")
    parser.add_argument("--python", default=testing.python, help="the sandbox's Python; default: python3")
    parser.add_argument("--seconds", type=float, default=testing.seconds, help="of one run of the tests; default: 60")
    add_sandbox(parser)
    parser.set_defaults(run=_inject)


def add_bugs(kinds: Any) -> None:
    """Register `tasks make bugs`."""
    parser = kinds.add_parser("bugs", help="bugs in a dozen small modules, each verified in a sandbox")
    parser.add_argument("directory", type=Path)
    family = BugsFamily()
    for name, text in (("train", "training tasks"), ("heldout", "held-out tasks"), ("seed", "draws everything")):
        default = getattr(family, name)
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text}; default: {default}")
    add_sandbox(parser)
    parser.set_defaults(run=_make_bugs)


def add_sandbox(parser: argparse.ArgumentParser) -> None:
    """The option that chooses the backend."""
    parser.add_argument("--sandbox", default="auto", metavar="KIND", help="backend, as sandbox.kind; default: auto")


def maker(arguments: argparse.Namespace) -> MakeSandbox:
    """Makes sandboxes of the chosen backend."""
    from whippletree.sandboxes import create
    from whippletree.sandboxes.config import SandboxConfig

    config = convert(SandboxConfig, {"kind": arguments.sandbox}, "--sandbox")
    return functools.partial(create, config, gateway=NO_GATEWAY)


def _inject(arguments: argparse.Namespace) -> int:
    from whippletree.tasks.injecting.pipeline import inject

    own = ("framework", "start", "python_path", "python", "seconds")
    data = {name: getattr(arguments, name) for name in Injection.__struct_fields__ if hasattr(arguments, name)}
    data["testing"] = {name: getattr(arguments, name) for name in own}
    settings = convert(Injection, data, "tasks inject")
    tally = asyncio.run(
        inject(arguments.repository, settings, arguments.to, maker(arguments), name=arguments.name, tell=tell_decision)
    )
    tell_tally(tally, arguments.to)
    return 0 if tally.kept else 1


def _make_bugs(arguments: argparse.Namespace) -> int:
    from whippletree.tasks.suites.bugs import write_bugs

    family = convert(BugsFamily, {name: getattr(arguments, name) for name in ("train", "heldout", "seed")}, "tasks make bugs")
    tallies = asyncio.run(write_bugs(arguments.directory, family, maker(arguments), tell_decision))
    counts = {split: sum(tally.kept for tally in found.values()) for split, found in tallies.items()}
    print(f"{counts['train']} training tasks and {counts['heldout']} held-out tasks in {arguments.directory}")
    return 0


def tell_decision(decision: Decision) -> None:
    """One line."""
    parts = [part for part in (decision.reason, decision.detail) if part]
    print(
        f"{'kept   ' if decision.kept else 'dropped'} {decision.name}  {': '.join(parts)}".splitlines()[0].rstrip(), flush=True
    )


def tell_tally(tally: Tally, directory: Path, *, as_json: bool = False) -> None:
    """How many were kept and dropped, by reason."""
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(tally)).decode())
        return
    print(f"{tally.kept} kept in {directory}; {sum(tally.dropped.values())} dropped")
    for reason, count in tally.kept_because.items():
        print(f"  kept {count}: {reason}")
    for reason, count in tally.dropped.items():
        print(f"  dropped {count}: {reason}")
