"""From a row's columns to the tensors that a loss sees, and the names of tokens that are not finite.

Invariants (tests/learner/test_learner_columns.py):
- only targets with a weight other than zero are selected, and nothing is computed with the others;
- a value that is not finite is named with its column, its sample and its place in the sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import torch

from whippletree.errors import DivergedError, NonFiniteError
from whippletree.learner.losses.base import Tokens
from whippletree.learner.rows import Row

TOKENS_NAMED = 3
GIVEN = ("sampler_logprobs", "advantages", "weights")
OPTIONAL = ("proximal_logprobs", "reference_logprobs", "teacher_logprobs", "teacher_top_logprobs", "old_values", "returns")


def weighted(row: Row) -> Row:
    """The row without targets whose weight is zero."""
    return row.select(row.weights != 0)


def given(row: Row) -> dict[str, torch.Tensor]:
    """The columns that the row brings. Raises NonFiniteError."""
    found = {name: getattr(row, name) for name in (*GIVEN, *OPTIONAL)}
    columns = {name: values for name, values in found.items() if values is not None}
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
    values["sequences"] = row.samples
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


def refuse_diverged(found: float, limit: float) -> None:
    """Raises DivergedError for a mean divergence from the reference above the limit, nats per token; 0: no limit."""
    if limit and found > limit:
        raise DivergedError(
            f"the policy is {found:.4g} nats per token (mean k3) from its reference; learner.kl.stop_above is {limit:g}",
            "resume from an older checkpoint with a lower learning rate or a larger learner.kl.coefficient",
        )


def token_names(row: Row, bad: torch.Tensor) -> str:
    """ "token 12 of sample s1, token 3 of sample s2 and 5 more", for the marked targets (bool [N])."""
    marked = torch.nonzero(bad)[:, 0].tolist()
    places = row.positions[row.targets]
    named = [f"token {int(places[n])} of sample {row.sample_ids[int(row.samples[n])]}" for n in marked[:TOKENS_NAMED]]
    more = f" and {len(marked) - TOKENS_NAMED} more" if len(marked) > TOKENS_NAMED else ""
    return ", ".join(named) + more
