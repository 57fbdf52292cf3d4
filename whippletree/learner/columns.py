"""From a row's columns to the per-token tensors of its trained tokens, and the names of tokens that are not finite.

Invariants (tests/learner/test_learner_columns.py):
- only trained tokens with a weight other than zero are selected; what stands in any column at other places is never computed
  with;
- a value that is not finite is named with its column, its sample and its place in the sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import torch

from whippletree.errors import NonFiniteError
from whippletree.learner.losses.base import Tokens
from whippletree.learner.model import SHARED, Row

TOKENS_NAMED = 3
GIVEN = ("sampler_logprobs", "advantages", "weights")
OPTIONAL = ("proximal_logprobs", "reference_logprobs", "teacher_logprobs", "teacher_top_logprobs", "old_values", "returns")


def weighted(row: Row) -> Row:
    """The row without targets whose weight is zero."""
    return replace(row, targets=row.targets & (row.weights != 0))


def spread(row: Row, values: torch.Tensor, fill: float = 0.0) -> torch.Tensor:
    """Values of the trained tokens, [N] or [N, K], as a column of the row, [T] or [T, K]; `fill` stands elsewhere."""
    column = values.new_full((len(row.targets), *values.shape[1:]), fill)
    column[row.targets] = values
    return column


def given(row: Row) -> dict[str, torch.Tensor]:
    """The columns that the row brings, at its trained tokens. Raises NonFiniteError."""
    found = {name: getattr(row, name) for name in (*GIVEN, *OPTIONAL)}
    columns = {name: values[row.targets] for name, values in found.items() if values is not None}
    refuse_non_finite(row, columns)
    return columns


def make_tokens(row: Row, columns: Mapping[str, torch.Tensor], computed: Mapping[str, torch.Tensor | None], old: str) -> Tokens:
    """What a loss sees: the row's columns, with what was computed on top. `old`: which policy ratios are taken to."""
    values: dict[str, torch.Tensor | None] = {
        **columns,
        **{name: found for name, found in computed.items() if found is not None},
    }
    logprobs = computed["logprobs"]
    assert logprobs is not None  # for mypy: the policy's own are always computed
    proximal = columns.get("proximal_logprobs")
    values["proximal_logprobs"] = logprobs.detach() if proximal is None else proximal
    values["old_logprobs"] = values["sampler_logprobs" if old == "sampler" else "proximal_logprobs"]
    values["sequences"] = row.segments[row.targets]
    return Tokens(**{column.name: values.get(column.name) for column in fields(Tokens)})  # type: ignore[arg-type]


def refuse_non_finite(row: Row, columns: Mapping[str, torch.Tensor]) -> None:
    """Raises NonFiniteError with the first column that has a NaN or an infinity, and the tokens where."""
    for name, values in columns.items():
        bad = ~torch.isfinite(values)
        if bad.any():
            places = bad if bad.dim() == 1 else bad.any(-1)
            first = float(values[bad][0].detach())
            raise NonFiniteError(
                f"{name} {first} at {token_names(row, places)}", "read the samples with `whippletree rollouts show`"
            )


def token_names(row: Row, bad: torch.Tensor) -> str:
    """ "token 12 of sample s1, token 3 of sample s2 and 5 more", for the marked ones of the trained tokens (bool [N])."""
    places = torch.nonzero(row.targets, as_tuple=True)[0][bad]
    named = [_token_name(row, int(place)) for place in places[:TOKENS_NAMED]]
    more = f" and {len(places) - TOKENS_NAMED} more" if len(places) > TOKENS_NAMED else ""
    return ", ".join(named) + more


def _token_name(row: Row, place: int) -> str:
    segment = int(row.segments[place])
    samples = ", ".join(row.sample_ids) if segment == SHARED else row.sample_ids[segment]
    return f"token {int(row.positions[place])} of sample {samples}"
