"""`whippletree tasks`: make, list, validate, show, check tasks, and run one by hand.

Invariants (tests/cli/test_cli_tasks.py):
- `validate` shows every problem of every task and exits with status 1 if there is one; a task is never run by it;
- a directory of tasks stands for all of them, whatever else lies in it;
- `check` and `run` leave no sandbox behind; `run` exits with status 1 when there is no reward;
- with --json, standard output is one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from whippletree.cli.task_filtering import add_filtering
from whippletree.cli.task_importing import add_importing
from whippletree.cli.task_injecting import add_injecting
from whippletree.cli.task_making import add_making
from whippletree.cli.task_shell import NO_GATEWAY, command, shell
from whippletree.configuration import convert
from whippletree.errors import ConfigurationError
from whippletree.protocols import Sandbox, SandboxSpec
from whippletree.tasks.images import HOSTS, Backing
from whippletree.tasks.reading import Reading, load_task, no_tasks, read_task, tasks_in
from whippletree.tasks.reward import RewardExpression
from whippletree.tasks.task import Task
from whippletree.types import VerifierResult
from whippletree.ui.conversation import printable

if TYPE_CHECKING:
    from whippletree.control.reaching import Reach
    from whippletree.sandboxes.config import SandboxConfig

T = TypeVar("T")
_PATHS = "a task's directory, or one that holds tasks, for all of them"


def add_commands(commands: Any) -> None:
    """Register the commands of this module."""
    tasks = commands.add_parser("tasks", help="make, list, check and run tasks").add_subparsers(dest="action", required=True)
    add_making(tasks)
    add_injecting(tasks)
    add_filtering(tasks)
    add_importing(tasks)
    listing = tasks.add_parser("list", help="one line per task of a directory")
    listing.add_argument("directory", type=Path)
    listing.set_defaults(run=_list)
    validate = tasks.add_parser("validate", help="read tasks and say all that is wrong with them")
    validate.add_argument("paths", type=Path, nargs="+", metavar="TASK", help=_PATHS)
    validate.set_defaults(run=_validate)
    show = tasks.add_parser("show", help="print what was read of a task")
    show.add_argument("path", type=Path)
    show.set_defaults(run=_show)
    check = tasks.add_parser("check", help="oracle passes, no-op and untouched environment fail, each twice")
    check.add_argument("paths", type=Path, nargs="+", metavar="TASK", help=_PATHS)
    check.set_defaults(run=_check)
    running = tasks.add_parser("run", help="run one task by hand, with its verifier")
    running.add_argument("path", type=Path, metavar="TASK")
    acting = running.add_mutually_exclusive_group()
    acting.add_argument("--oracle", action="store_true", help="let its solution/solve.sh act")
    acting.add_argument("--shell", action="store_true", help="look inside and act yourself; the verifier follows")
    acting.add_argument(
        "--command", default="", metavar="COMMAND", dest="shell_command", help="let a shell command act, per step"
    )
    running.add_argument("--artifacts", type=Path, metavar="DIR", help="keep the task's artifacts there")
    running.set_defaults(run=_run)
    for parser in (listing, validate, show, check, running):
        parser.add_argument("--variable", action="append", default=[], metavar="NAME=VALUE", help="for ${NAME} in task.toml")
    for parser in (listing, validate, check, running):
        parser.add_argument("--json", action="store_true", help="print one JSON document")
    for parser in (check, running):
        parser.add_argument("--reward", default="", metavar="EXPRESSION", help="reward from named scores, as control.reward")
        parser.add_argument("--sandbox", default="auto", metavar="KIND", help="backend, as sandbox.kind; default: auto")
    for parser in (validate, check, running):
        text = "what tasks get of the networks that they ask for, as control.network.tasks; default: closed"
        parser.add_argument("--network", default="closed", choices=["closed", "allowlist", "open"], help=text)
    for parser in (listing, validate, show):
        parser.add_argument(
            "--sandbox", default="", metavar="KIND", help="read them for a backend; default: any without images"
        )
    for parser in (listing, validate, show, check, running):
        parser.add_argument("--images", choices=("needed", "always"), default="needed", help="as control.images")


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    pairs = [item.partition("=") for item in arguments.variable]
    for name, separator, _ in pairs:
        if not separator or not name:
            raise ConfigurationError(f"--variable {name} is not of the form NAME=VALUE", "write for example --variable LEVEL=3")
    return {name: value for name, _, value in pairs}


def _config(arguments: argparse.Namespace) -> SandboxConfig:
    from whippletree.sandboxes.config import SandboxConfig

    return convert(SandboxConfig, {"kind": arguments.sandbox}, "--sandbox")


def _maker(arguments: argparse.Namespace) -> Callable[[SandboxSpec], Sandbox]:
    from whippletree.sandboxes import create

    return functools.partial(create, _config(arguments), gateway=NO_GATEWAY)


def _backing(arguments: argparse.Namespace) -> Backing:
    """What the sandboxes of --sandbox can be."""
    if not arguments.sandbox:
        return HOSTS
    from whippletree.control.imaging import backing_of

    return backing_of(_config(arguments), arguments.images)


async def _with_images(arguments: argparse.Namespace, task: Task, work: Callable[[Task], Awaitable[T]]) -> T:
    """Do something with a task once its images are there. Raises SandboxError, TaskError."""
    if not task.images:
        return await work(task)
    from whippletree.control.imaging import HeldImages, Imaging

    imaging = Imaging(_config(arguments), wanted=arguments.images)
    held = HeldImages(imaging)
    try:
        return await work(await held.on(task))
    finally:
        held.close()
        await imaging.close()


def _reach(arguments: argparse.Namespace, task: Task) -> Reach:
    from whippletree.control.config import NetworkConfig
    from whippletree.control.reaching import Reach

    return Reach(convert(NetworkConfig, {"tasks": arguments.network}, "--network"), task)


def _rule(arguments: argparse.Namespace) -> RewardExpression | None:
    return RewardExpression(arguments.reward) if arguments.reward else None


def _print_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value)).decode())


def _list(arguments: argparse.Namespace) -> int:
    variables = _variables(arguments)
    found = tasks_in(arguments.directory)
    if not found:
        raise no_tasks(arguments.directory)
    backing = _backing(arguments)
    readings = [read_task(path, variables, backing) for path in found]
    if arguments.json:
        _print_json(readings)
        return 0
    for path, reading in zip(found, readings, strict=True):
        print(f"{path.name}  {_line(reading)}")
    return 0


def _named(paths: Sequence[Path]) -> list[Path]:
    """The tasks that were meant: a directory that is no task, but holds some, stands for all of them."""
    return [task for path in paths for task in ((not (path / "task.toml").exists() and tasks_in(path)) or [path])]


def _line(reading: Reading) -> str:
    if reading.task is None:
        return f"{len(reading.problems)} problems, first: {printable(str(reading.problems[0]))}"
    steps = reading.task.steps
    parts = [f"{len(steps)} steps"] if len(steps) > 1 else []
    parts.append(f"agent {sum(step.agent_timeout for step in steps):g} s")
    parts += ["separate verifier"] if any(step.judging.separate for step in steps) else []
    parts += [] if all(step.solution_dir for step in steps) else ["no oracle"]
    return ", ".join(parts)


def _validate(arguments: argparse.Namespace) -> int:
    variables = _variables(arguments)
    backing = _backing(arguments)
    paths = _named(arguments.paths)
    readings = [_noted(arguments, read_task(path, variables, backing)) for path in paths]
    if arguments.json:
        _print_json(readings)
    for path, reading in zip(paths, readings, strict=True):
        if not arguments.json:
            notes = [f"note: {note}" for note in reading.task.notes] if reading.task else []
            lines = [printable(line) for line in (*map(str, reading.problems), *notes)]
            print(f"{'FAIL' if reading.problems else 'ok  '} {path}", *lines, sep="\n     ")
    return 1 if any(reading.problems for reading in readings) else 0


def _noted(arguments: argparse.Namespace, reading: Reading) -> Reading:
    """With what the task asks of the network in vain among its notes."""
    if reading.task is None:
        return reading
    notes = (*reading.task.notes, *_reach(arguments, reading.task).withheld)
    return msgspec.structs.replace(reading, task=msgspec.structs.replace(reading.task, notes=notes))


def _show(arguments: argparse.Namespace) -> int:
    _print_json(load_task(arguments.path, _variables(arguments), _backing(arguments)))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from whippletree.tasks.checks import check_task

    make, rule, variables, backing = _maker(arguments), _rule(arguments), _variables(arguments), _backing(arguments)
    checks = []
    for path in _named(arguments.paths):
        task = load_task(path, variables, backing)
        judged = functools.partial(check_task, make_sandbox=make, rule=rule, reach=_reach(arguments, task))
        checks.append(asyncio.run(_with_images(arguments, task, judged)))
        if not arguments.json:
            lines = [printable(problem) for problem in checks[-1].problems]
            print(f"{'FAIL' if lines else 'ok  '} {path}", *lines, sep="\n     ", flush=True)
    if arguments.json:
        _print_json(checks)
    return 1 if any(check.problems for check in checks) else 0


def _run(arguments: argparse.Namespace) -> int:
    from whippletree.tasks.trial import do_nothing, oracle, run_trial

    task = load_task(arguments.path, _variables(arguments), _backing(arguments))
    rule, make = _rule(arguments), _maker(arguments)
    acting = oracle if arguments.oracle else shell if arguments.shell else do_nothing
    if arguments.shell_command:
        acting = functools.partial(command, arguments.shell_command, quiet=arguments.json)

    async def work(ready: Task) -> VerifierResult:
        return await run_trial(
            ready,
            make,
            acting,
            name=f"run-{secrets.token_hex(4)}",
            timeout=max(step.judging.timeout for step in task.steps),
            rule=rule,
            directory=arguments.artifacts.absolute() if arguments.artifacts else None,
            reach=_reach(arguments, task),
        )

    result = asyncio.run(_with_images(arguments, task, work))
    if arguments.json:
        _print_json(result)
    else:
        _tell(result)
    return 1 if result.reward is None else 0


def _tell(result: VerifierResult) -> None:
    for step in result.steps:
        verdict = f"{step.cause.cause}: {step.cause.message}" if step.cause else _scores(step.scores)
        print(printable(f"step {step.name}: {verdict}"))
    if result.output:
        print(printable(f"the tests said:\n{result.output.rstrip()}"))
    for found in result.tampering:
        print(printable(f"tampering: {found}"))
    if result.cause is not None:
        said = f"{result.cause.cause} in {result.cause.phase}: {result.cause.message}"
        print(printable(f"no reward: {said} ({result.cause.next_step})"))
        return
    by = f" = {result.expression}" if result.expression else ""
    scores = "" if set(result.scores) == {"reward"} else f"; {_scores(result.scores)}"
    print(printable(f"reward {result.reward:g}{by}{scores}"))


def _scores(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in scores.items())
