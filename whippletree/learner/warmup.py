"""Supervised warm-up of the tiny model: sloppy demonstrations, and lists to repeat.

What the model must bring to reinforcement learning is the form of a tool call, some inclination to read on, and copying: a
file's name or code out of a tool result into the next command. Copying does not emerge from demonstrations alone in so small a
model; dense "repeat this list" sequences teach it.

Invariants (tests/learner/test_tiny_warmup.py):
- a demonstration's ids are exactly those that the gateway would feed and record for the same messages;
- only what the assistant says is trained, its end-of-turn token included;
- held-out tasks are never shown;
- with captured formats the sequences of an update lie behind one copy of each harness's prompt, which changes no loss and no
  gradient.
This module imports torch only when it trains.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whippletree.configuration import Amount, Config, Natural, Share
from whippletree.learner.captured import Surroundings, draw_surroundings
from whippletree.learner.transcripts import Formats, TranscriptFormat
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
TASK = "<|im_start|>user\n"
COPY_SHORTEST = 4  # entries
COPY_NAMES = 0.6  # share of names among the entries; the rest are codes
RISE = 20  # updates until the learning rate is at its highest
PIECES_KEPT = 100_000
NOWHERE = Surroundings(date="", kernel="")


class WarmupConfig(Config):
    """The supervised warm-up of the tiny model."""

    steps: Natural = 600
    """Updates."""
    batch: Natural = 32
    """Sequences in one update."""
    learning_rate: Amount = 4e-3
    """AdamW's highest learning rate; it rises over 20 updates and then falls linearly to a tenth."""
    read_on: Share = 0.45
    """Probability with which the demonstrator reads on at each file; its success on a trail of depth d is about read_on**d."""
    lost: Share = 0.0
    """Probability, at each file, that it loses its way: it reads files at random until its turns are up, and fails."""
    lost_turns: Natural = 8
    """Turns that one which lost its way has in all."""
    copy_share: Share = 0.45
    """Share of the sequences that are lists to repeat instead of demonstrations."""
    copy_longest: Natural = 10
    """Longest list to repeat; the shortest has 4 entries."""
    threads: Natural = 1
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
        self,
        directory: Path,
        family: TrailFamily,
        formats: Sequence[TranscriptFormat],
        config: WarmupConfig,
        seed: int,
        *,
        words: Sequence[str] = (),
    ) -> None:
        """`words`: entries of lists to repeat besides the family's names and codes."""
        self._codec: Codec = load_codec(directory / "tokenizer.json")
        self._template: ChatTemplate = load_template(directory, RenderingConfig())
        self._stream = TrailStream(family)
        self._family, self._formats, self._config = family, Formats(formats), config
        self._words = [*NAMES[: family.names], *words]
        self._rng = random.Random(f"{seed}/warmup")
        self._pieces: dict[str, list[int]] = {}

    @property
    def captured(self) -> bool:
        """Whether any format was captured."""
        return self._formats.captured

    def batch(self, count: int) -> list[Example]:
        """Sequences for one update; harnesses that tell of day and machine tell of the same ones in all of them."""
        around = draw_surroundings(self._rng) if self.captured else NOWHERE
        return [self.draw(around) for _ in range(count)]

    def draw(self, around: Surroundings = NOWHERE) -> Example:
        """A list to repeat, or a demonstration."""
        if self._rng.random() < self._config.copy_share:
            return self.encode(*self._copying(around))
        trail = self._stream.train(self._rng.randrange(1 << 30))
        config, format = self._config, self._formats.choose(self._rng)
        turns = sloppy_turns(trail, self._family, self._rng, config.read_on, lost=config.lost, lost_turns=config.lost_turns)
        found = self._formats.write(trail, turns, format, around, self._rng)
        chosen = found[self._rng.randrange(len(found))] if len(found) > 1 else found[0]
        return self.encode(chosen.messages, chosen.tools)

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Example:
        """Ids of the messages, the assistant's turns marked. Pieces between special tokens are tokenised on their own, which
        changes nothing, since no token reaches across a special one."""
        head, *turns = self._template.render(messages, tools, generation_prompt=False).split(ANSWER)
        before, mark, task = head.partition(TASK)
        ids = [*self._ids(before), *self._ids(mark + task)]
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

    def _copying(self, around: Surroundings) -> tuple[list[Message], tuple[ToolSpec, ...]]:
        """A list to repeat; behind the tools and system prompt of a captured format, where copying has to work."""
        rng, family = self._rng, self._family
        length = rng.randint(COPY_SHORTEST, self._config.copy_longest)
        entries = [
            rng.choice(self._words) if rng.random() < COPY_NAMES else str(FIRST_CODE + rng.randrange(family.codes))
            for _ in range(length)
        ]
        text = " ".join(entries)
        said = [Message(role="user", content=text), Message(role="assistant", content=text)]
        if not self.captured:
            return said, ()
        fixed, tools = self._formats.fixed(self._formats.choose(rng), around)
        return [*fixed, *said], tools


def warm_up(model: Any, examples: Examples, config: WarmupConfig) -> WarmupStats:
    """Train `model` (a transformers causal language model, in place). Leaves torch's thread count as it was."""
    import torch

    started, threads, plain = time.process_time(), torch.get_num_threads(), model.config._attn_implementation
    torch.set_num_threads(config.threads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    losses: list[float] = []
    tokens = 0
    model.train()
    loss_of = forest_loss(model) if examples.captured else partial(padded_loss, model)
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, (step + 1) / RISE) * (1.0 - 0.9 * step / config.steps)
        loss, count = loss_of(examples.batch(config.batch))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        tokens += count
    model.eval()
    model.set_attn_implementation(plain)
    torch.set_num_threads(threads)
    last = losses[-max(1, len(losses) // 10) :]
    return WarmupStats(
        steps=config.steps,
        sequences=config.steps * config.batch,
        tokens=tokens,
        loss=sum(last) / max(1, len(last)),
        cpu_seconds=time.process_time() - started,
    )


def forest_loss(model: Any) -> Callable[[Sequence[Example]], tuple[torch.Tensor, int]]:
    """The same as `padded_loss` for a model made ready to compute what sequences share once (learner/rows.py)."""
    from whippletree.learner.model import ModelOptions, prepare_model
    from whippletree.learner.rows import build_row, unsampled
    from whippletree.learner.scoring import row_logprobs

    prepare_model(model, ModelOptions(packing="tree", attention="runs"))

    def loss_of(batch: Sequence[Example]) -> tuple[torch.Tensor, int]:
        samples = [unsampled(str(number), example.ids, example.trained) for number, example in enumerate(batch)]
        names = {sample.sample_id: 1.0 for sample in samples}
        row = build_row(samples, names, names)
        return -row_logprobs(model, row, 1.0).mean(), len(row.token_ids)

    return loss_of


def padded_loss(model: Any, batch: Sequence[Example]) -> tuple[torch.Tensor, int]:
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
