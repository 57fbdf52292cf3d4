"""The command line: `whippletree COMMAND`.

    train RUN.toml          everything on this machine: engine, gateway, controller, learner
    eval RUN.toml           held-out tasks only
    eval GRID.toml          models x harnesses x tasks (a file with [grid])
    gateway | engine | controller | learner --run-dir DIR    one process of a run
    tasks make | list | validate | show | check | run | inject | filter | import
    harness list | show | install | check   config show | check
    rollouts list | show | export | reconcile | grade | shell
    export sft RUN_DIR...           sft SFT.toml | RUN_DIR...
    report DIR                version

Invariants (tests/cli/test_cli.py):
- every error of this package ends the command with status 2 and one message that names cause and next step;
- so does a path that cannot be read or written (a full disk, no permission, a file in the place of a directory);
- an option that is not written out is an error;
- a reader that closes the pipe early (`| head`) is no error;
- Ctrl-C ends `train` with status 130 after sandboxes are gone and a checkpoint is on disk.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from whippletree import __version__
from whippletree.cli import harnesses, inspecting, services, sft, tasks, training
from whippletree.errors import WhippletreeError

PATHS: Mapping[int, str] = {
    errno.ENOENT: "see that it is there, and the directory that it lies in",
    errno.EEXIST: "choose another path, or remove what is there",
    errno.ENOTDIR: "a file is where a directory is needed: choose another path",
    errno.EISDIR: "a directory is where a file is needed: choose another path",
    errno.EACCES: "see who may read and write there, or choose another path",
    errno.EPERM: "see who may read and write there, or choose another path",
    errno.EROFS: "choose a path on a file system that can be written to",
    errno.ENOSPC: "make room, then give the same command again",
    errno.EDQUOT: "make room, then give the same command again",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "its links lead in a circle: choose another path",
}
"""What to do about a path that the system refuses, by the error's number."""


class Parser(argparse.ArgumentParser):
    """Options are written out: a slip is an error, never the option that it happens to begin (`--over` removes nothing)."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"allow_abbrev": False})


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(prog="whippletree", description="Train one model through many unmodified agent harnesses.")
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
    except OSError as error:
        next_step = PATHS.get(error.errno or 0)
        if error.filename is None or next_step is None:
            raise
        print(
            f"whippletree {arguments.command}: {error.filename2 or error.filename}: {error.strerror} ({next_step})",
            file=sys.stderr,
        )
        return 2
    return status
