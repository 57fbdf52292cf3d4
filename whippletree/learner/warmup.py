"""Supervised warm-up of the tiny model: sloppy demonstrations, and lists to repeat.

What the model must bring to reinforcement learning is the form of a tool call, some inclination to read on, and copying: a
file's name or code out of a tool result into the next command. Copying does not emerge from demonstrations alone in so small a
model; dense "repeat this list" sequences teach it.

Invariants (tests/learner/test_tiny_warmup.py):
- a demonstration's ids are exactly those that the gateway would feed and record for the same messages;
- only what the assistant says is trained, its end-of-turn token included;
- held-out tasks are never shown.
This module imports torch only when it trains.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whippletree.configuration import Config
from whippletree.learner.transcripts import TranscriptFormat, transcripts
from whippletree.rendering.codec import Codec, load_codec
from whippletree.rendering.config import RenderingConfig
from whippletree.rendering.template import ChatTemplate, load_template
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.demonstrator import sloppy_turns
from whippletree.tasks.trail import FIRST_CODE, NAMES, TrailStream
from whippletree.types import Message, Struct, ToolSpec

if TYPE_CHECKING:
    import torch

END = "<|im_end|>"
ANSWER = "<|im_start|>assistant\n"
COPY_SHORTEST = 4  # entries
COPY_NAMES = 0.6  # share of names among the entries; the rest are codes
RISE = 20  # updates until the learning rate is at its highest
PIECES_KEPT = 100_000


class WarmupConfig(Config):
    """The supervised warm-up of the tiny model."""

    steps: int = 600
    """Updates."""
    batch: int = 32
    """Sequences in one update."""
    learning_rate: float = 4e-3
    """AdamW's highest learning rate; it rises over 20 updates and then falls linearly to a tenth."""
    read_on: float = 0.45
    """Probability with which the demonstrator reads on at each file; its success on a trail of depth d is about read_on**d."""
    lost: float = 0.0
    """Probability, at each file, that it loses its way: it reads files at random until its turns are up, and fails."""
    lost_turns: int = 8
    """Turns that one which lost its way has in all."""
    copy_share: float = 0.45
    """Share of the sequences that are lists to repeat instead of demonstrations."""
    copy_longest: int = 10
    """Longest list to repeat; the shortest has 4 entries."""
    threads: int = 1
    """Torch threads."""


class WarmupStats(Struct):
    """How a warm-up went. `loss` is the mean over the last tenth of the updates, in nats per trained token.

    Example: WarmupStats(steps=600, sequences=19200, tokens=800000, loss=0.5, cpu_seconds=35.0)
    """

    steps: int
    sequences: int
    tokens: int
    loss: float
    cpu_seconds: float


@dataclass(frozen=True)
class Example:
    """One training sequence. Both columns have the same length; `trained` marks what the assistant says."""

    ids: list[int]
    trained: list[bool]


class Examples:
    """Draws training sequences, tokenised as the gateway would feed and record them. Endless; the seed decides everything."""

    def __init__(
        self, directory: Path, family: TrailFamily, formats: Sequence[TranscriptFormat], config: WarmupConfig, seed: int
    ) -> None:
        self._codec: Codec = load_codec(directory / "tokenizer.json")
        self._template: ChatTemplate = load_template(directory, RenderingConfig())
        self._stream = TrailStream(family)
        self._family, self._formats, self._config = family, formats, config
        self._rng = random.Random(f"{seed}/warmup")
        self._pieces: dict[str, list[int]] = {}

    def draw(self) -> Example:
        """A list to repeat, or a demonstration."""
        if self._rng.random() < self._config.copy_share:
            return self.encode(self._copying(), ())
        trail = self._stream.train(self._rng.randrange(1 << 30))
        config, format = self._config, choose_format(self._formats, self._rng)
        turns = sloppy_turns(trail, self._family, self._rng, config.read_on, lost=config.lost, lost_turns=config.lost_turns)
        found = transcripts(trail, turns, format)
        chosen = found[self._rng.randrange(len(found))] if len(found) > 1 else found[0]
        return self.encode(chosen.messages, chosen.tools)

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Example:
        """Ids of the messages, the assistant's turns marked. Pieces between special tokens are tokenised on their own, which
        changes nothing, since no token reaches across a special one."""
        head, *turns = self._template.render(messages, tools, generation_prompt=False).split(ANSWER)
        ids = list(self._ids(head))
        trained = [False] * len(ids)
        for turn in turns:
            said, end, rest = turn.partition(END)
            for piece, is_trained in ((ANSWER, False), (said, True), (end, True), (rest, False)):
                new = self._ids(piece)
                ids += new
                trained += [is_trained] * len(new)
        return Example(ids, trained)

    def _ids(self, text: str) -> list[int]:
        if text not in self._pieces:
            if len(self._pieces) > PIECES_KEPT:
                self._pieces.clear()
            self._pieces[text] = self._codec.encode(text)
        return self._pieces[text]

    def _copying(self) -> list[Message]:
        rng, family = self._rng, self._family
        length = rng.randint(COPY_SHORTEST, self._config.copy_longest)
        entries = [
            rng.choice(NAMES[: family.names]) if rng.random() < COPY_NAMES else str(FIRST_CODE + rng.randrange(family.codes))
            for _ in range(length)
        ]
        text = " ".join(entries)
        return [Message(role="user", content=text), Message(role="assistant", content=text)]


def choose_format(formats: Sequence[TranscriptFormat], rng: random.Random) -> TranscriptFormat:
    """One of them, by weight."""
    return formats[0] if len(formats) == 1 else rng.choices(formats, [format.weight for format in formats])[0]


def warm_up(model: Any, examples: Examples, config: WarmupConfig) -> WarmupStats:
    """Train `model` (a transformers causal language model, in place). Leaves torch's thread count as it was."""
    import torch

    started, threads = time.process_time(), torch.get_num_threads()
    torch.set_num_threads(config.threads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    losses: list[float] = []
    tokens = 0
    model.train()
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, (step + 1) / RISE) * (1.0 - 0.9 * step / config.steps)
        loss, count = _loss(model, [examples.draw() for _ in range(config.batch)])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        tokens += count
    model.eval()
    torch.set_num_threads(threads)
    last = losses[-max(1, len(losses) // 10) :]
    return WarmupStats(
        steps=config.steps,
        sequences=config.steps * config.batch,
        tokens=tokens,
        loss=sum(last) / max(1, len(last)),
        cpu_seconds=time.process_time() - started,
    )


def _loss(model: Any, batch: Sequence[Example]) -> tuple[torch.Tensor, int]:
    """Mean cross-entropy of the trained tokens (nats), and the batch's tokens. Sequences are padded on the right, where causal
    attention never looks back from."""
    import torch

    length = max(len(example.ids) for example in batch)
    ids = torch.tensor([example.ids + [0] * (length - len(example.ids)) for example in batch])
    trained = torch.tensor([example.trained + [False] * (length - len(example.trained)) for example in batch])
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
    chosen = trained[:, 1:]
    logits = model.lm_head(hidden[chosen]).float()
    loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:][chosen])
    return loss, sum(len(example.ids) for example in batch)
