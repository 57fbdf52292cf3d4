"""`whippletree sft`: supervised fine-tuning on examples, with the learner's loss, rows and checkpoints.

    samples ─► updates ─► rows (what samples share is computed once) ─► learner ─► metrics.jsonl, checkpoints/ ─► model/

Nothing is sampled, so nobody is waited for.
Invariants (tests/loop/test_sft_training.py):
- an update's loss is the mean over its trained tokens, however they lie in samples and rows;
- a run that was killed and resumed has the weights of one that was not, bit for bit, and a line of every update;
- held-out tasks are measured and never learned from;
- the model that is written is what the engines load: Hugging Face layout, with its tokenizer.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from whippletree.batching import plan_batch, prefix_order
from whippletree.batching.config import PackingConfig
from whippletree.batching.packing import SampleLength
from whippletree.errors import ConfigurationError
from whippletree.files import write_json
from whippletree.learner import checkpoint
from whippletree.learner.config import LearnerConfig
from whippletree.learner.learner import Learner
from whippletree.learner.rows import Row, build_row
from whippletree.loop.metrics import Log
from whippletree.loop.sft.config import SftConfig
from whippletree.loop.sft.encoding import Encoded, data_files, encode, split, updates
from whippletree.types import Sample, Struct

METRICS = "sft"


class SftMetrics(Struct, omit_defaults=False):
    """One update: mean loss in nats per trained token before it, and from time to time that of the held-out examples after it.
    Step 0 is the measurement before the first update: it has no `loss`.

    Example: SftMetrics(step=1, steps=40, loss=1.92, tokens=4101, examples=310, row_tokens=9120, grad_norm=0.8, seconds=2.1)
    """

    step: int
    steps: int
    loss: float | None
    tokens: int = 0
    examples: int = 0
    row_tokens: int = 0
    grad_norm: float | None = None
    heldout_loss: float | None = None
    seconds: float = 0.0
    time: float = 0.0


class SftSummary(Struct, omit_defaults=False):
    """A fine-tuning in one object, `summary.json`. Losses in nats per trained token.

    Example: SftSummary(steps=40, examples=1900, heldout_examples=100, tokens=164000, loss_first=1.9, loss_last=0.4,
                        heldout_before=1.95, heldout_after=0.52, seconds=84.0, model="runs/sft/model")
    """

    steps: int
    examples: int
    heldout_examples: int
    tokens: int
    loss_first: float | None
    loss_last: float | None
    heldout_before: float | None
    heldout_after: float | None
    seconds: float
    model: str
    dropped: dict[str, int] = {}


class SftRun:
    """A fine-tuning in progress, in a directory of its own."""

    def __init__(
        self,
        config: SftConfig,
        directory: Path,
        *,
        data: Sequence[str],
        model_directory: Path,
        tell: Callable[[SftMetrics], None],
    ) -> None:
        """`data`: exports. `tell` is given every line. Raises ConfigurationError."""
        self.config = config
        self.directory = directory
        self.log = Log(directory)
        self.encoded: Encoded = encode(data_files(data), model_directory, config.rendering, longest=config.sft.longest)
        self.learned, self.held = split(self.encoded, config.sft.heldout, config.sft.seed)
        if not self.learned:
            left = ", ".join(f"{count} x {reason}" for reason, count in self.encoded.dropped.items())
            raise ConfigurationError(f"there is nothing to learn from ({left or 'no examples'})", "see export.json")
        section = config.sft
        every = updates(self.encoded, self.learned, epochs=section.epochs, batch_tokens=section.batch_tokens, seed=section.seed)
        self.batches = every[: section.steps] if section.steps else every
        config.optimiser.check(len(self.batches))
        self.learner = Learner(model_directory, config.optimiser, temperature=1.0, run_steps=len(self.batches))
        self._check_vocabulary()
        self._model_directory = model_directory
        self._tell = tell
        self._stopping = False

    def stop(self) -> None:
        """End after the update at hand, with a checkpoint of it. For signal handlers and other threads."""
        self._stopping = True

    def _check_vocabulary(self) -> None:
        largest = max(int(sample.token_ids.max()) for sample in self.encoded.samples.values())
        size = int(self.learner.model.config.get_text_config().vocab_size)
        if largest >= size:
            raise ConfigurationError(
                f"the examples have token {largest}, the model only {size} tokens",
                "use an export of format chat",
            )

    def run(self) -> SftSummary:
        """Train from the last checkpoint, or the beginning, to the end; returns the summary. Raises KeyboardInterrupt where it
        was stopped; what is done is in a checkpoint then."""
        found = checkpoint.latest(self.directory / "checkpoints")
        step = checkpoint.restore(self.learner, found).step if found is not None else 0
        if not step:
            self._write(SftMetrics(step=0, steps=len(self.batches), loss=None, heldout_loss=self.heldout_loss()))
        for number in range(step, len(self.batches)):
            self._update(number)
            if self._stopping and number + 1 < len(self.batches):
                self._save(number + 1)
                raise KeyboardInterrupt
        return self._finish()

    def _save(self, done: int) -> None:
        place = self.directory / "checkpoints"
        checkpoint.save(self.learner, place, step=done, tokenizer_from=self._model_directory)
        checkpoint.prune(place, keep=self.config.learner.keep_checkpoints)

    def _update(self, number: int) -> None:
        started = time.time()
        done, section = number + 1, self.config.sft
        rows = make_rows([self.encoded.samples[name] for name in self.batches[number]], self.config.optimiser)
        stats = self.learner.update(rows)
        last = done == len(self.batches)
        measured = self.heldout_loss() if last or done % section.measure_every == 0 else None
        self._write(
            SftMetrics(
                step=done,
                steps=len(self.batches),
                loss=stats.loss,
                tokens=stats.tokens,
                examples=len(self.batches[number]),
                row_tokens=sum(len(row.token_ids) for row in rows),
                grad_norm=stats.grad_norm,
                heldout_loss=measured,
                seconds=time.time() - started,
            )
        )
        if last or done % section.checkpoint_every == 0:
            self._save(done)  # behind its line: what is resumed from has all its lines

    def heldout_loss(self) -> float | None:
        """Mean loss of the held-out examples under the current weights; None where there are none."""
        if not self.held:
            return None
        rows = make_rows([self.encoded.samples[name] for name in self.held], self.config.optimiser)
        logprobs = [float(value) for column in self.learner.logprobs(rows) for value in column]
        return -math.fsum(logprobs) / len(logprobs)

    def _write(self, line: SftMetrics) -> None:
        line = msgspec.structs.replace(line, time=time.time())
        self.log.append(METRICS, line)
        self._tell(line)

    def _finish(self) -> SftSummary:
        model = self.directory / "model"
        partial = self.directory / ".partial-model"
        shutil.rmtree(partial, ignore_errors=True)
        checkpoint.export(self.learner, partial, tokenizer_from=self._model_directory)
        shutil.rmtree(model, ignore_errors=True)
        partial.rename(model)
        lines = read_metrics(self.directory)
        losses = [line.loss for line in lines if line.loss is not None]
        measured = [line.heldout_loss for line in lines if line.heldout_loss is not None]
        summary = SftSummary(
            steps=len(self.batches),
            examples=len(self.learned),
            heldout_examples=len(self.held),
            tokens=sum(line.tokens for line in lines),
            loss_first=losses[0] if losses else None,
            loss_last=losses[-1] if losses else None,
            heldout_before=measured[0] if measured else None,
            heldout_after=measured[-1] if measured else None,
            seconds=sum(line.seconds for line in lines),
            model=str(model),
            dropped=dict(self.encoded.dropped),
        )
        write_json(self.directory / "summary.json", summary)
        return summary


def make_rows(samples: Sequence[Sample], config: LearnerConfig) -> list[Row]:
    """Rows of one update. Each trained token weighs 1 / N, N being all of the update's."""
    total = sum(int(sample.trained.sum()) for sample in samples)
    by_name = {sample.sample_id: sample for sample in samples}
    lengths = [
        SampleLength(sample_id=sample.sample_id, rollout_id=sample.rollout_id, tokens=len(sample.token_ids))
        for sample in samples
    ]
    packing = PackingConfig(packing=config.packing, token_budget=config.token_budget)
    order = prefix_order({sample.sample_id: sample.token_ids for sample in samples})
    (plan,) = plan_batch(lengths, packing, 1, order).updates
    advantages = {sample.rollout_id: 1.0 for sample in samples}
    weights = {sample.sample_id: 1.0 / total for sample in samples}
    return [
        build_row([by_name[name] for name in row.sample_ids], advantages, weights, shared=row.shared)
        for row in plan.ranks[0]
        if row.sample_ids
    ]


def read_metrics(directory: Path) -> list[SftMetrics]:
    """The lines of a fine-tuning, the last one of each update."""
    lines = Log(directory).read(METRICS, SftMetrics)
    return [line for _, line in sorted({line.step: line for line in lines}.items())]
