"""`whippletree export sft` and `whippletree sft`: learn from what went well (docs/sft.md).

export sft RUN_DIR... ─► chat.jsonl or tokens.parquet, export.json
sft SFT.toml | RUN_DIR... ─► (exports of the runs) ─► update by update ─► model/ in Hugging Face layout

Invariants (tests/cli/test_cli_sft.py):
- what was left out is printed with its reasons;
- nothing that it did not make is removed;
- Ctrl-C ends it with status 130 after the update at hand, which is in a checkpoint;
- --resume goes on from the last checkpoint with the directory's own configuration.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from whippletree.cli.claiming import claimed, overwrite, resumable
from whippletree.configuration import apply_override, convert, dump, load
from whippletree.errors import ConfigurationError
from whippletree.files import write_atomically
from whippletree.loop.grid.running import GridLayout
from whippletree.loop.layout import Layout
from whippletree.loop.models import DirectoryModel, prepare_model
from whippletree.loop.sft.config import ExportConfig, SftConfig
from whippletree.loop.sft.exporting import ACCOUNT, ExportAccount, export, run_layouts

if TYPE_CHECKING:
    from whippletree.loop.sft.training import SftRun

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "whippletree"
CONFIG = "sft.toml"
EXPORTED = "exported"  # of the directories of runs that it learns from


def add_commands(commands: Any) -> None:
    """Register the commands of this module."""
    _add_export(commands)
    parser = commands.add_parser("sft", help="supervised fine-tuning on captured successes")
    parser.add_argument("data", type=Path, nargs="*", help="an SFT file (TOML), or exports and directories of runs")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override one key")
    parser.add_argument("--run-dir", type=Path, help="where it goes; default: sft.directory/sft.name")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with an interrupted one")
    parser.add_argument("--overwrite", action="store_true", help="remove an earlier one of the same name first")
    parser.set_defaults(run=_sft)


def _add_export(commands: Any) -> None:
    kinds = commands.add_parser("export", help="write what was captured for others").add_subparsers(
        dest="action", required=True
    )
    parser = kinds.add_parser("sft", help="successes as examples for supervised fine-tuning")
    parser.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR", help="directories of runs or grids")
    parser.add_argument("--out", type=Path, help="where the files go; default: sft/ in the first directory")
    parser.add_argument("--format", choices=["chat", "tokens"], help="chat.jsonl (default), or tokens.parquet")
    parser.add_argument("--min-reward", type=float, metavar="R", help="rollouts with at least this reward; default 1")
    parser.add_argument("--purpose", choices=["train", "eval", "all"], help="only these rollouts")
    parser.add_argument("--balance", action="store_true", help="as many trained tokens of every harness")
    parser.add_argument("--tokens-per-harness", type=int, metavar="N", help="at most so many trained tokens of each harness")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="a key of [export]")
    parser.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    given = {
        "format": arguments.format,
        "min_reward": arguments.min_reward,
        "purpose": arguments.purpose,
        "balance": arguments.balance or None,
        "tokens_per_harness": arguments.tokens_per_harness,
    }
    data: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for item in arguments.overrides:
        apply_override(data, item)
    target = arguments.out or arguments.run_dirs[0] / "sft"
    account = export(arguments.run_dirs, target, convert(ExportConfig, data, "command line"))
    print(account_text(account))
    print(f"{target / account.file}\n{target / ACCOUNT}")
    return 0


def account_text(account: ExportAccount) -> str:
    """What an export holds and left out, in lines."""
    lines = [
        f"{account.kept_rollouts} of {account.rollouts} rollouts, {account.kept_calls} of their {account.calls} calls",
        f"{account.examples} examples with {account.tokens} trained tokens; {account.duplicates} duplicates left out, "
        f"{account.balanced_away} by balancing",
    ]
    lines += [
        f"  {name}: {account.examples_by_harness[name]} examples, {n} tokens" for name, n in account.tokens_by_harness.items()
    ]
    for what, table in (("rollouts", account.dropped_rollouts), ("calls", account.dropped_calls)):
        lines += [f"  left out: {count} {what}: {reason}" for reason, count in table.items()]
    return "\n".join(lines)


def _sft(arguments: argparse.Namespace) -> int:
    with ExitStack() as held:
        config, directory = _open(arguments, held)
        return _train(config, directory, Console(highlight=False, markup=False))


def _train(config: SftConfig, directory: Path, console: Console) -> int:
    from whippletree.loop.sft.training import SftRun
    from whippletree.ui.sft import SftView

    data = _exports(config, directory)
    model = _model(config, data)
    view = SftView(console)
    run = SftRun(config, directory, data=data, model_directory=model, tell=view.line)
    write_atomically(directory / CONFIG, dump(config).encode())
    left = "".join(f"; left out: {count} x {reason}" for reason, count in run.encoded.dropped.items())
    console.out(f"{len(run.learned)} examples to learn from, {len(run.held)} held out, {len(run.batches)} updates{left}")
    with resumable("sft", directory), _stopping(run):
        summary = run.run()
    view.curve(directory)
    console.out(f"{directory / 'summary.json'}\n{summary.model}")
    return 0


@contextmanager
def _stopping(run: SftRun) -> Iterator[None]:
    """Ctrl-C ends the run after the update at hand, a second one at once. Where it is ignored, as of a job in the background,
    it stays so."""

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        run.stop()

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _open(arguments: argparse.Namespace, held: ExitStack) -> tuple[SftConfig, Path]:
    if arguments.resume is not None:
        if arguments.data or arguments.overrides:
            raise ConfigurationError("--resume goes on with its own configuration", "leave out files and --set")
        if not (arguments.resume / CONFIG).is_file():
            raise ConfigurationError(f"{arguments.resume} holds no fine-tuning", "give its directory, for example runs/sft")
        held.enter_context(claimed(arguments.resume))
        return load(SftConfig, arguments.resume / CONFIG), arguments.resume.resolve()
    config = _read(arguments.data, arguments.overrides)
    config.check()
    directory = (arguments.run_dir or Path(config.sft.directory) / config.sft.name).resolve()
    held.enter_context(claimed(directory))
    if Layout(directory).config.is_file() or GridLayout(directory).config.is_file():
        raise ConfigurationError(f"{directory} holds a run or a grid", "choose another directory")
    if (directory / CONFIG).is_file():
        if not arguments.overwrite:
            raise ConfigurationError(f"{directory} holds a fine-tuning", "go on with --resume, or give --overwrite")
        overwrite(directory, [*arguments.data, *map(Path, config.data)])
    shutil.rmtree(directory / EXPORTED, ignore_errors=True)  # of one that ended before it began
    return config, directory


def _read(data: Sequence[Path], overrides: Sequence[str]) -> SftConfig:
    """An SFT file's configuration, or the defaults for these exports and runs."""
    if len(data) == 1 and data[0].suffix == ".toml":
        return load(SftConfig, data[0], overrides)
    if not data:
        raise ConfigurationError("nothing to learn from", "give an SFT file, an export or the directory of a run")
    plain: dict[str, Any] = {"data": [str(path) for path in data]}
    for item in overrides:
        apply_override(plain, item)
    if isinstance(plain.get("model"), dict):
        plain["model"].setdefault("kind", "directory")  # as it is where nothing is said of the model
    return convert(SftConfig, plain, "command line")


def _exports(config: SftConfig, directory: Path) -> list[str]:
    """The exports to learn from; of runs one is made, unless an interrupted fine-tuning has made it already. Raises
    ConfigurationError."""
    from whippletree.loop.sft.encoding import data_files

    found: list[str] = []
    for number, name in enumerate(config.data):
        path = Path(name).expanduser()
        if not (Layout(path).store.is_dir() or GridLayout(path).config.is_file()):
            data_files([name])
            found.append(name)
            continue
        target = directory / EXPORTED / f"{number:02d}"
        if not (target / ACCOUNT).is_file():
            print(account_text(export([path], target, config.export)))
        found.append(str(target))
    return found


def _model(config: SftConfig, data: Sequence[str]) -> Path:
    """The model to begin with. Raises ConfigurationError."""
    if not isinstance(config.model, DirectoryModel) or config.model.path:
        return prepare_model(config.model, seed=config.sft.seed, cache=CACHE / "models")
    for name in data:
        path = Path(name).expanduser()
        account = (path if path.is_dir() else path.parent) / ACCOUNT
        if account.is_file():
            runs = msgspec.json.decode(account.read_bytes(), type=ExportAccount).runs
            services = run_layouts([Path(runs[0])])[0].read_services()
            return prepare_model(DirectoryModel(path=services.model_directory), seed=config.sft.seed, cache=CACHE)
    raise ConfigurationError("no model is named, and the data names no run that began with one", "set model.path")
