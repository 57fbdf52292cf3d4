"""From samples to rows of tensors.

A row is a forest: samples that begin with the same tokens lie behind one copy of that beginning, which is computed once,
forward and backward. Every token knows where its subtree ends (`exits`) and which token it follows on its path (`parents`).

    samples a b c d, a b x, e f    index    0  1  2  3  4  5  6
                                   token    a  b  c  d  x  e  f
                                   depth    0  1  2  3  2  0  1     (position)
                                   exit     5  5  4  4  5  7  7     token i sees token j if and only if j <= i < exit(j)
                                   parent   -  0  1  2  1  -  5     the logprob of x is read at b

Invariants (tests/learner/test_rows.py):
- what a token sees is its own path, and its position is its depth there;
- every trained token of every sample is one target; two samples that trained the same token of a tree are two targets;
- a target's columns are those of its own sample, and `select` keeps them together;
- a column of targets, taken apart by sample and laid again, is the same column;
- a token's routing is that of the sample that laid it;
- a row of no samples has one token and no target, so it can be computed and weighs nothing, whatever columns others bring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from whippletree.batching.trees import prefix_order
from whippletree.errors import AlignmentError
from whippletree.types import Bool, Int16, Sample

OF_TOKENS = frozenset({"token_ids", "positions", "exits", "parents", "sample_ids", "routing"})
"""What of a row is not a column of its targets."""


@dataclass(frozen=True)
class Row:
    """Samples laid as a forest of T tokens with N targets, the trained tokens; sample by sample, along each sample. A sample
    lies in one row, so `samples` numbers whole sequences.

    Shape [T]: `token_ids`; `positions` (depth in the own tree); `exits` (index behind the last token of the subtree);
    `parents` (index of the token before it on its path, -1 at a root).
    Shape [T, layers, k]: `routing` (the experts that each token went to when it was sampled; -1 where nobody recorded them).
    Shape [N]: `targets` (index of the token in the row); `samples` (number of its sample in `sample_ids`); `sampler_logprobs`;
    `versions`; `advantages`; `weights`; and whichever of the others a loss needs: logprobs of the learner before the update
    (`proximal`), of a reference and of a teacher, the teacher's K best tokens (shape [N, K]), a critic's values before the
    update and returns.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    exits: torch.Tensor
    parents: torch.Tensor
    targets: torch.Tensor
    samples: torch.Tensor
    sampler_logprobs: torch.Tensor
    versions: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    sample_ids: tuple[str, ...]
    proximal_logprobs: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None
    teacher_logprobs: torch.Tensor | None = None
    teacher_top_ids: torch.Tensor | None = None
    teacher_top_logprobs: torch.Tensor | None = None
    old_values: torch.Tensor | None = None
    returns: torch.Tensor | None = None
    routing: torch.Tensor | None = None

    def select(self, chosen: torch.Tensor) -> Row:
        """The same tokens with some of the targets: those that `chosen` (bool [N]) marks."""
        columns = {column.name: getattr(self, column.name) for column in fields(self) if column.name not in OF_TOKENS}
        return replace(self, **{name: found[chosen] for name, found in columns.items() if found is not None})

    def to(self, device: torch.device) -> Row:
        """The same row on a device."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        moved: dict[str, Any] = {name: at.to(device) for name, at in columns.items() if isinstance(at, torch.Tensor)}
        return replace(self, **moved)

    @property
    def branched(self) -> bool:
        """True where more than one token of the row follows some token."""
        follows = torch.arange(len(self.parents)) - 1
        return bool(((self.parents != follows) & (self.parents >= 0)).any())


def build_row(
    samples: Sequence[Sample],
    advantages: Mapping[str, float],
    weights: Mapping[str, float],
    *,
    shared: Sequence[int] | None = None,
) -> Row:
    """Lay samples as a forest. `advantages` is by rollout_id; `weights` is the weight of each trained token, by sample_id.

    `shared[k]`: how many tokens sample k has in common with sample k - 1, which lie there already; the samples must then be in
    prefix order (batching/trees.py), and 0s lay them end to end. Left out: they are put into that order, and all is shared.
    A row of no samples, which a rank runs so that others need not wait for ever, is one token without a target. Raises
    AlignmentError for a trained first token, which no token predicts, and for samples that do not share what they should.
    """
    if shared is None:
        by_id = {sample.sample_id: sample for sample in samples}
        order = prefix_order({sample.sample_id: sample.token_ids for sample in samples})
        samples, shared = [by_id[name] for name in order.names], order.shared
    forest = _Forest()
    if not samples:
        forest.add_nothing()
    for sample, common in zip(samples, shared, strict=True):
        forest.add(sample, common)
    trained = [np.flatnonzero(sample.trained) for sample in samples]

    routing = forest.routing([sample.routing for sample in samples], shared)

    def of_targets(columns: Sequence[npt.NDArray[np.generic]], dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(np.concatenate(columns) if columns else np.zeros(0)).to(dtype)

    def repeated(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return of_targets([np.full(len(own), value) for own, value in zip(trained, values, strict=True)], dtype)

    return Row(
        token_ids=torch.as_tensor(np.concatenate(forest.token_ids)).to(torch.long),
        positions=torch.as_tensor(np.concatenate(forest.positions)),
        exits=torch.as_tensor(forest.exits()),
        parents=torch.as_tensor(np.concatenate(forest.parents)),
        targets=of_targets([path[own] for path, own in zip(forest.paths, trained, strict=bool(samples))], torch.long),
        samples=repeated(list(range(len(samples))), torch.long),
        sampler_logprobs=of_targets([s.logprobs[own] for s, own in zip(samples, trained, strict=True)], torch.float32),
        versions=of_targets([s.versions[own] for s, own in zip(samples, trained, strict=True)], torch.long),
        advantages=repeated([advantages[sample.rollout_id] for sample in samples], torch.float32),
        weights=repeated([weights[sample.sample_id] for sample in samples], torch.float32),
        sample_ids=tuple(sample.sample_id for sample in samples),
        routing=None if routing is None else torch.as_tensor(routing),
    )


def empty_row(like: Row | None = None) -> Row:
    """A row without samples, which a rank runs where others have rows left: one token, no target, so every gradient is 0.
    `like`: a row whose optional columns it has too, with nothing in them."""
    none = torch.zeros(0)
    row = Row(
        token_ids=torch.zeros(1, dtype=torch.long),
        positions=torch.zeros(1, dtype=torch.long),
        exits=torch.ones(1, dtype=torch.long),
        parents=torch.full((1,), -1),
        targets=none.long(),
        samples=none.long(),
        sampler_logprobs=none,
        versions=none.long(),
        advantages=none,
        weights=none,
        sample_ids=(),
    )
    if like is None:
        return row
    brought = {column.name: getattr(like, column.name) for column in fields(like) if column.name not in OF_TOKENS}
    return replace(row, **{name: found[:0] for name, found in brought.items() if found is not None})


def by_sample(row: Row, column: torch.Tensor) -> dict[str, npt.NDArray[Any]]:
    """A column of targets [N] as one of each sample, by sample_id: one value per target of the sample, in order."""
    return {name: column[row.samples == number].numpy() for number, name in enumerate(row.sample_ids)}


def lay_column(row: Row, columns: Mapping[str, npt.NDArray[Any]]) -> torch.Tensor:
    """Columns of samples, by sample_id, as the row's column of targets [N], float32. Raises AlignmentError where a length
    differs."""
    laid = torch.zeros(len(row.targets))
    for number, name in enumerate(row.sample_ids):
        own = row.samples == number
        given = np.array(columns[name], dtype=np.float32)
        if len(given) != int(own.sum()):
            raise AlignmentError(
                f"sample {name} has {int(own.sum())} targets, and a column of {len(given)}", "give one per trained token"
            )
        laid[own] = torch.from_numpy(given)
    return laid


class _Forest:
    """Columns of the tokens of a row under way; `paths[k]`: the index in the row of each token of sample k, shape [L]."""

    def __init__(self) -> None:
        self.token_ids: list[npt.NDArray[np.int32]] = []
        self.positions: list[npt.NDArray[np.int64]] = []
        self.parents: list[npt.NDArray[np.int64]] = []
        self.paths: list[npt.NDArray[np.int64]] = []
        self._ends: list[int] = []
        self._before = np.zeros(0, np.int32)
        self._length = 0

    def add(self, sample: Sample, common: int) -> None:
        if sample.trained[:1].any():
            raise AlignmentError(
                f"sample {sample.sample_id} trains its first token, before which there is none", "mend its mask"
            )
        new = np.arange(self._length, self._length + len(sample.token_ids) - common)
        begun = self.paths[-1][:common] if common else np.zeros(0, np.int64)
        if len(begun) < common:
            raise AlignmentError(
                f"sample {sample.sample_id} shares {common} tokens with one of {len(begun)}", "sort the samples"
            )
        if common and not np.array_equal(sample.token_ids[:common], self._before[:common]):
            raise AlignmentError(
                f"sample {sample.sample_id} does not begin with the {common} tokens that it is said to share", "plan it anew"
            )
        self._before = sample.token_ids
        self.token_ids.append(sample.token_ids[common:])
        self.positions.append(np.arange(common, len(sample.token_ids)))
        parents = new - 1
        parents[:1] = begun[-1] if common else -1
        self.parents.append(parents)
        self.paths.append(np.concatenate([begun, new]))
        self._length += len(new)
        self._ends.append(self._length)

    def add_nothing(self) -> None:
        """One token that belongs to no sample."""
        self.token_ids.append(np.zeros(1, np.int32))
        self.positions.append(np.zeros(1, np.int64))
        self.parents.append(np.full(1, -1))
        self.paths.append(np.zeros(1, np.int64))
        self._length = 1
        self._ends.append(1)

    def routing(self, columns: Sequence[Int16 | None], shared: Sequence[int]) -> Int16 | None:
        """The samples' own routing of the tokens that each added, [T, layers, k], -1 for those that have none; None where none
        has any. Raises AlignmentError where shapes differ."""
        shapes = {column.shape[1:] for column in columns if column is not None}
        if not shapes:
            return None
        if len(shapes) > 1:
            raise AlignmentError(f"samples of one row have routing of shapes {sorted(shapes)}", "look at the engines")
        laid = np.full((self._length, *shapes.pop()), -1, np.int16)
        for path, column, common in zip(self.paths, columns, shared, strict=bool(columns)):
            if column is not None:
                laid[path[common:]] = column[common:]
        return laid

    def exits(self) -> npt.NDArray[np.int64]:
        """A token's subtree ends where the last sample that holds it ends."""
        found = np.zeros(self._length, np.int64)
        for path, end in zip(self.paths, self._ends, strict=True):
            found[path] = end
        return found


def unsampled(name: str, token_ids: Sequence[int], trained: Sequence[bool] | Bool) -> Sample:
    """A sample of tokens that no policy sampled, and of a rollout of that name. `trained`: [T]."""
    length = len(token_ids)
    return Sample(
        sample_id=name,
        rollout_id=name,
        group_id=name,
        call_ids=(),
        token_ids=np.array(token_ids, np.int32),
        trained=np.array(trained),
        logprobs=np.zeros(length, np.float32),
        versions=np.zeros(length, np.int32),
    )


def all_trained(name: str, token_ids: Sequence[int]) -> Sample:
    """A sample of these tokens, to be scored: all but the first are trained."""
    return unsampled(name, token_ids, np.arange(len(token_ids)) > 0)
