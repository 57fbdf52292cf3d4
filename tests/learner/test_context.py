"""whippletree/learner/context.py, on real gloo processes"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learner_parts import ADVANTAGES, VOCABULARY, WEIGHTS, make_samples
from ranks_parts import InDouble, RankedInDouble, make_ranked, many, one_process, ranks, run_ranks, same_update

from whippletree.configuration import convert
from whippletree.errors import ConfigurationError
from whippletree.learner.attention import sees
from whippletree.learner.config import LearnerConfig
from whippletree.learner.context import pad
from whippletree.learner.rows import Row, build_row
from whippletree.types import Sample


def forest() -> Row:
    """Samples of which two share 5 tokens; 63 tokens in all."""
    samples = make_samples()
    grown = np.concatenate([samples[1].token_ids[:5], samples[2].token_ids[5:]])
    mixed = Sample(**{name: getattr(samples[2], name) for name in Sample.__struct_fields__} | {"token_ids": grown})
    row = build_row([samples[0], samples[1], mixed, samples[3]], ADVANTAGES, WEIGHTS)
    assert row.branched
    return row


@pytest.mark.parametrize(("data", "context"), [(1, 2), (2, 2), (1, 4)])
def test_sharing_rows_makes_the_update_of_one_process(small_model: Path, data: int, context: int):
    samples = make_samples()
    rows = [forest(), build_row(samples[2:], ADVANTAGES, WEIGHTS), build_row(samples[:1], ADVANTAGES, WEIGHTS)]
    settings: dict[str, Any] = {"entropy_bonus": 0.01, "loss": {"name": "gspo"}}
    one = one_process(small_model, [rows, rows[1:]], settings, kind=InDouble)
    sizes = ranks(data=data, context=context)
    for made in run_ranks(data * context, many, small_model, [rows, rows[1:]], {**settings, "ranks": sizes}, RankedInDouble):
        same_update(one, made, tolerance=1e-9)
        for a, b in zip(one.weights, made.weights, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-8, atol=1e-8)


def test_what_is_padded_is_looked_at_by_nobody():
    row = forest()
    padded = pad(row, 8)
    length = len(row.token_ids)
    assert len(padded.token_ids) % 8 == 0 and len(padded.token_ids) > length
    index = torch.arange(len(padded.token_ids))
    seen = sees(padded, "full_attention", None)(index[:, None], index[None, :])
    assert not seen[:length, length:].any()
    assert not seen[length:, :length].any()
    assert torch.equal(padded.targets, row.targets)
    assert pad(padded, 8) is padded
    assert int(padded.token_ids.max()) < VOCABULARY


def refused(rank: int, directory: Path, size: int) -> str:
    try:
        make_ranked(directory, {"ranks": ranks(context=size)})
    except ConfigurationError as error:
        return str(error)
    return ""


def test_heads_that_cannot_be_shared_are_refused(small_model: Path):
    said = run_ranks(3, refused, small_model, 3)
    assert all("learner.ranks.context = 3 does not divide the model's 4 attention heads" in one for one in said)


@pytest.mark.parametrize("more", [{"packing": "single"}, {"attention": "dense"}, {"attention": "flex"}])
def test_other_ways_of_attention_are_refused(more: dict[str, Any]):
    config = convert(LearnerConfig, {**more, "ranks": ranks(context=2)}, "run.toml")
    with pytest.raises(ConfigurationError, match=r"learner\.ranks\.context"):
        config.check()
