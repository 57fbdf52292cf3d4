"""From files of examples to samples, and from samples to updates.

    chat.jsonl ─► prompt ids (as the gateway renders them) + reply ids (as the template writes them) ─┐
    tokens.parquet ─► ids and marks as they are ──────────────────────────────────────────────────────┴─► samples ─► updates
Invariants (tests/loop/test_sft_encoding.py):
- of a chat line only the reply is trained, with the token that ends its turn, behind the very ids that the gateway would feed;
- an example that the template cannot write, or that is too long, is counted and left out, never cut;
- a directory with exports of both formats is refused: nothing is learned twice unawares;
- every sample is in one update of each epoch, and those of a rollout are in the same one;
- the same samples and seed give the same updates; tasks that are held out are in none.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from whippletree.errors import ConfigurationError, RequestError
from whippletree.loop.sft.examples import ChatExample, Origin, TokenExample, to_message, to_tool
from whippletree.loop.sft.exporting import CHAT, TOKENS, read_chat, read_tokens
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.rendering.renderer import ChatRenderer
from whippletree.types import Bool, Int32, Sample


@dataclass
class Encoded:
    """Samples of a data set with their origins, by sample_id, and how many examples were left out, by reason."""

    samples: dict[str, Sample] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, origin: Origin, token_ids: Int32, trained: Bool) -> None:
        """One more example."""
        unique = name
        while unique in self.samples:  # the same rollout, exported twice
            unique = f"{unique}+"
        length = len(token_ids)
        self.origins[unique] = origin
        self.samples[unique] = Sample(
            sample_id=unique,
            rollout_id=f"{origin.run}/{origin.rollout_id}",
            group_id=f"{origin.source}/{origin.task_id}",
            call_ids=(),
            token_ids=token_ids,
            trained=trained,
            logprobs=np.zeros(length, np.float32),
            versions=np.where(trained, 0, -1).astype(np.int32),
        )


def data_files(paths: Sequence[str]) -> list[Path]:
    """The files of exports: named themselves, or by their directories, each of one file. Raises ConfigurationError."""
    found = []
    for name in paths:
        path = Path(name).expanduser()
        inside = [path / kind for kind in (CHAT, TOKENS) if (path / kind).is_file()]
        if not path.is_file() and not inside:
            raise ConfigurationError(f"data: {name} holds no {CHAT} and no {TOKENS}", "make one with `whippletree export sft`")
        if len(inside) > 1:
            raise ConfigurationError(
                f"data: {name} holds {CHAT} and {TOKENS}, which may be the same examples twice",
                f"name one of them: {inside[0]}",
            )
        found += inside or [path]
    return found


def encode(files: Sequence[Path], model_directory: Path, rendering: RenderingConfig, *, longest: int) -> Encoded:
    """Every example as a sample of this model. Raises ConfigurationError."""
    encoded = Encoded()
    renderer: ChatRenderer | None = None
    for path in files:
        if path.suffix == ".parquet":
            for row in read_tokens(path):
                _add_tokens(encoded, row, longest)
            continue
        renderer = renderer or _renderer(model_directory, rendering)
        for line in read_chat(path):
            _add_chat(encoded, line, renderer, longest)
    return encoded


def _renderer(directory: Path, config: RenderingConfig) -> ChatRenderer:
    renderer = load_renderer(directory, config)
    if not isinstance(renderer, ChatRenderer):
        raise ConfigurationError(
            f"rendering.renderer {config.renderer!r} cannot write a reply", "leave it out, or use an export of format tokens"
        )
    return renderer


def _add_tokens(encoded: Encoded, row: TokenExample, longest: int) -> None:
    if len(row.input_ids) > longest:
        encoded.dropped["longer than sft.longest"] += 1
        return
    encoded.add(f"{row.origin.run}/{row.sample_id}", row.origin, row.input_ids, row.trained)


def _add_chat(encoded: Encoded, line: ChatExample, renderer: ChatRenderer, longest: int) -> None:
    *before, reply = (to_message(message) for message in line.messages)
    tools = [to_tool(tool) for tool in line.tools]
    try:
        prompt = renderer.render(before, tools)
        said = renderer.completion(before, reply, tools)
    except RequestError:
        encoded.dropped["the chat template refuses it"] += 1
        return
    if not said:
        encoded.dropped["the chat template does not write the reply behind its prompt"] += 1
        return
    if len(prompt) + len(said) > longest:
        encoded.dropped["longer than sft.longest"] += 1
        return
    ids = np.array([*prompt, *said], np.int32)
    encoded.add(f"{line.run}/{line.rollout_id}/{line.call_id}", line, ids, np.arange(len(ids)) >= len(prompt))


def split(encoded: Encoded, share: float, seed: int) -> tuple[list[str], list[str]]:
    """Names of the samples to learn from and of those that are held out: whole tasks, about that share of them."""
    by_task: dict[str, list[str]] = defaultdict(list)
    for name, sample in encoded.samples.items():
        by_task[sample.group_id].append(name)
    tasks = sorted(by_task)
    random.Random(f"{seed}/heldout").shuffle(tasks)
    count = min(max(1, round(share * len(tasks))), len(tasks) - 1) if share and len(tasks) > 1 else 0
    held = [name for task in tasks[:count] for name in by_task[task]]
    out = set(held)
    return [name for name in encoded.samples if name not in out], held


def updates(encoded: Encoded, names: Sequence[str], *, epochs: int, batch_tokens: int, seed: int) -> list[list[str]]:
    """Names of the samples of each update, epoch by epoch. What is left at the end of an epoch is an update of its own; where
    it is less than half of one, it is part of the last."""
    by_rollout: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_rollout[encoded.samples[name].rollout_id].append(name)
    found: list[list[str]] = []
    for epoch in range(epochs):
        order, begun = sorted(by_rollout), len(found)
        random.Random(f"{seed}/{epoch}").shuffle(order)
        batch: list[str] = []
        tokens = 0
        for rollout in order:
            batch += by_rollout[rollout]
            tokens += sum(int(encoded.samples[name].trained.sum()) for name in by_rollout[rollout])
            if tokens >= batch_tokens:
                found.append(batch)
                batch, tokens = [], 0
        if batch and 2 * tokens < batch_tokens and len(found) > begun:
            found[-1] += batch
        elif batch:
            found.append(batch)
    return found
