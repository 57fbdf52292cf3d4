"""The command line: `whippletree COMMAND`.

    train RUN.toml          everything on this machine: engine, gateway, controller, learner
    eval RUN.toml           held-out tasks only
    eval GRID.toml          models x harnesses x tasks (a file with [grid])
    gateway | engine | controller | learner --run-dir DIR    one process of a run
    tasks make | list | validate | show | check | run | inject | filter | import
    harness list | show | install | check   config show | check
    rollouts list | show | export | reconcile | shell
    export sft RUN_DIR...           sft SFT.toml | RUN_DIR...
    report DIR                version

Invariants (tests/cli/test_cli.py):
- every error of this package ends the command with status 2 and one message that names cause and next step;
- a reader that closes the pipe early (`| head`) is no error;
- Ctrl-C ends `train` with status 130 after sandboxes are gone and a checkpoint is on disk.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from whippletree import __version__
from whippletree.cli import harnesses, inspecting, services, sft, tasks, training
from whippletree.errors import WhippletreeError


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(prog="whippletree", description="Train one model through many unmodified agent harnesses.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    training.add_commands(commands)
    services.add_commands(commands)
    tasks.add_commands(commands)
    harnesses.add_commands(commands)
    inspecting.add_commands(commands)
    sft.add_commands(commands)
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_print_version)
    return parser


def _print_version(_: argparse.Namespace) -> int:
    print(__version__)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except WhippletreeError as error:
        print(f"whippletree {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader (`| head`) has what it wanted; nothing more may be written on the way out
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status
