"""`export sft`: from records of runs to a file of examples, with the account of what was left out.

    runs ─► examples (selecting.py) ─► without duplicates ─► balanced ─► chat.jsonl or tokens.parquet, export.json

A grid's directory stands for the runs of its models.
Invariants (tests/loop/test_sft_exporting.py):
- examples made = examples written + duplicates + those that balancing left out;
- the same runs and settings give the same file, byte for byte;
- a file appears whole or not at all.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np

from whippletree.configuration import load
from whippletree.errors import ConfigurationError, words_of
from whippletree.files import write_atomically, write_json
from whippletree.loop.config import RunConfig
from whippletree.loop.grid.running import GridLayout
from whippletree.loop.layout import Layout, no_store
from whippletree.loop.sft.config import ExportConfig
from whippletree.loop.sft.examples import ChatExample, Origin, TokenExample, balanced, chat_key, token_key, unique
from whippletree.loop.sft.selecting import Reader, Tally
from whippletree.store import StoreConfig, open_store
from whippletree.types import Struct
from whippletree.types.messages import MessageRole

CHAT, TOKENS, ACCOUNT = "chat.jsonl", "tokens.parquet", "export.json"
ROLES = get_args(MessageRole)  # of a line's messages


class ExportAccount(Struct, omit_defaults=False):
    """What an export holds and what it left out, `export.json`. `tokens`: trained ones of the examples written.

    Example: ExportAccount(format="chat", file="chat.jsonl", runs=("runs/demo",), rollouts=1536, kept_rollouts=812, calls=2510,
                           kept_calls=2498, examples=1100, tokens=9900, duplicates=1398, tokens_by_harness={"mini": 9900})
    """

    format: str
    file: str
    runs: tuple[str, ...]
    rollouts: int
    kept_rollouts: int
    calls: int
    kept_calls: int
    examples: int
    tokens: int
    duplicates: int = 0
    balanced_away: int = 0
    tokens_by_harness: dict[str, int] = {}
    examples_by_harness: dict[str, int] = {}
    dropped_rollouts: dict[str, int] = {}
    dropped_calls: dict[str, int] = {}
    config: ExportConfig = ExportConfig()


def run_layouts(directories: Sequence[Path]) -> list[Layout]:
    """The runs behind these directories; those of a grid's models for a grid. Raises ConfigurationError where there is none."""
    found: list[Layout] = []
    for directory in directories:
        grid = GridLayout(directory.resolve())
        places = sorted(grid.directory.glob("models/*")) if grid.config.is_file() else [grid.directory]
        runs = [Layout(place) for place in places if Layout(place).store.is_dir()]
        if not runs:
            raise no_store(directory)
        found += runs
    return found


def export(directories: Sequence[Path], target: Path, config: ExportConfig) -> ExportAccount:
    """Write an export of these runs into the directory `target`. Raises ConfigurationError and StoreError."""
    tally = Tally()
    layouts = run_layouts(directories)
    if config.format == "chat":
        return _finish(list(_chat(layouts, config, tally)), target, config, tally, layouts)
    return _finish(list(_tokens(layouts, config, tally)), target, config, tally, layouts)


def _finish(
    examples: Sequence[ChatExample] | Sequence[TokenExample],
    target: Path,
    config: ExportConfig,
    tally: Tally,
    layouts: Sequence[Layout],
) -> ExportAccount:
    kept: list[Any] = list(examples)
    repeated: list[Any] = []
    if config.deduplicate:
        kept, repeated = unique(kept, chat_key if config.format == "chat" else token_key)
    sizes = [(origin_of(example).harness, origin_of(example).tokens) for example in kept]
    marks = balanced(sizes, even=config.balance, limit=config.tokens_per_harness, seed=config.seed)
    written = [example for example, mark in zip(kept, marks, strict=True) if mark]
    target.mkdir(parents=True, exist_ok=True)
    if config.format == "chat":
        write_chat(target / CHAT, written)
    else:
        write_tokens(target / TOKENS, written)
    origins = [origin_of(example) for example in written]
    tokens = Counter(dict.fromkeys((harness for harness, _ in sizes), 0))  # also of one that balancing left nothing of
    counts = Counter(tokens)
    for origin in origins:
        tokens[origin.harness] += origin.tokens
        counts[origin.harness] += 1
    account = ExportAccount(
        format=config.format,
        file=CHAT if config.format == "chat" else TOKENS,
        runs=tuple(str(layout.directory) for layout in layouts),
        rollouts=tally.rollouts,
        kept_rollouts=tally.kept_rollouts,
        calls=tally.calls,
        kept_calls=tally.kept_calls,
        examples=len(written),
        tokens=sum(tokens.values()),
        duplicates=len(repeated),
        balanced_away=len(kept) - len(written),
        tokens_by_harness=dict(sorted(tokens.items())),
        examples_by_harness=dict(sorted(counts.items())),
        dropped_rollouts=dict(tally.dropped_rollouts.most_common()),
        dropped_calls=dict(tally.dropped_calls.most_common()),
        config=config,
    )
    write_json(target / ACCOUNT, account)
    return account


def origin_of(example: ChatExample | TokenExample) -> Origin:
    """Where it comes from."""
    return example.origin if isinstance(example, TokenExample) else example


def _readers(layouts: Sequence[Layout], config: ExportConfig, tally: Tally) -> Iterator[Reader]:
    for layout in layouts:
        settings = load(RunConfig, layout.config).store if layout.config.is_file() else StoreConfig()
        with closing(open_store(layout.store, config=settings, instance="export")) as store:
            yield Reader(store, layout.directory.name, config, tally)


def _chat(layouts: Sequence[Layout], config: ExportConfig, tally: Tally) -> Iterator[ChatExample]:
    for reader in _readers(layouts, config, tally):
        yield from reader.chat()


def _tokens(layouts: Sequence[Layout], config: ExportConfig, tally: Tally) -> Iterator[TokenExample]:
    for reader in _readers(layouts, config, tally):
        yield from reader.tokens()


# --- files ---


def write_chat(path: Path, examples: Sequence[ChatExample]) -> None:
    """One line each, atomically."""
    write_atomically(path, b"".join(msgspec.json.encode(example) + b"\n" for example in examples))


def read_chat(path: Path) -> list[ChatExample]:
    """Raises ConfigurationError that names the line which is none."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            example = msgspec.json.decode(line, type=ChatExample)
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{path}:{number}: {error}", "docs/sft.md has the form of a line") from error
        if odd := next((message.role for message in example.messages if message.role not in ROLES), ""):
            raise ConfigurationError(f"{path}:{number}: a message of role {odd!r}", f"roles are {', '.join(ROLES)}")
        if example.target != len(example.messages) - 1 or example.messages[example.target].role != "assistant":
            raise ConfigurationError(
                f"{path}:{number}: target {example.target} is not the last message, or not the assistant's",
                "let it be the reply to learn, and the messages before it what the model was shown",
            )
        found.append(example)
    return found


ORIGINS = tuple(Origin.__struct_fields__)


def write_tokens(path: Path, examples: Sequence[TokenExample]) -> None:
    """Columns input_ids (list of int32), loss_mask (list of bool), sample_id and the origin's, atomically."""
    import pyarrow
    import pyarrow.parquet

    columns: dict[str, Any] = {name: [getattr(example.origin, name) for example in examples] for name in ORIGINS} | {
        "sample_id": [example.sample_id for example in examples],
        "input_ids": pyarrow.array([example.input_ids for example in examples], pyarrow.list_(pyarrow.int32())),
        "loss_mask": pyarrow.array([example.trained for example in examples], pyarrow.list_(pyarrow.bool_())),
    }
    written = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), written)
    write_atomically(path, written.getvalue())


def read_tokens(path: Path) -> list[TokenExample]:
    """Raises ConfigurationError for a file of another form, naming the row."""
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigurationError(
            f"{path} cannot be read: {words_of(error)}", "write it anew with `whippletree export sft`"
        ) from error
    found = []
    for number, row in enumerate(rows):
        try:
            origin = msgspec.convert({name: row[name] for name in ORIGINS}, Origin)
            ids, trained = np.array(row["input_ids"], np.int32), np.array(row["loss_mask"], np.bool_)
        except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            raise ConfigurationError(f"{path}: row {number}: {error!r}", "docs/sft.md has the columns") from error
        if len(ids) != len(trained) or not trained.any() or trained[0]:
            raise ConfigurationError(
                f"{path}: row {number}: {len(ids)} ids, {len(trained)} marks, {int(trained.sum())} of them set",
                "give one mark for each id, at least one set, and not the first",
            )
        found.append(TokenExample(origin=origin, sample_id=row["sample_id"], input_ids=ids, trained=trained))
    return found
