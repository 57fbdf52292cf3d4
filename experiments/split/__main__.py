"""GRPO under three loss normalisations in a harness that compacts often.

    python -m experiments.split

Nine runs of split.toml, one after another: three normalisations, three seeds. A run whose result is there is not made again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.folding import put_tables
from experiments.running import PlannedRun, make_runs, places, read_results
from experiments.split.fold import MODES, draw, fold, tables
from whippletree.files import write_json

HERE = Path(__file__).resolve().parent
SEEDS = (1, 2, 3)
TOY = (
    "loop.steps=2",
    "loop.groups_per_step=2",
    "loop.group_size=2",
    "loop.eval_every=0",
    "model.tiny.warmup.steps=20",
    "model.tiny.family={train = 8, heldout = 4}",
    "sources.0.tasks.family={train = 8, heldout = 4}",
)


def planned(toy: bool = False) -> list[PlannedRun]:
    """The runs, seed by seed."""
    return [
        PlannedRun(
            name=f"{mode}-{seed}",
            variant=mode,
            seed=seed,
            settings=(f"batching.weights.mode={mode}", *(TOY if toy else ())),
        )
        for seed in (SEEDS[:1] if toy else SEEDS)
        for mode in (MODES[:2] if toy else MODES)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Make what is missing, fold, plot."""
    where = places(__doc__ or "", HERE, argv)
    plans = planned(where.toy)
    if where.make:
        make_runs(plans, HERE / "split.toml", where.runs, where.results)
    found = read_results(plans, where.results)
    modes = [mode for mode in MODES if any(result.variant == mode for result in found)]
    summary = fold(found, modes)
    write_json(where.summary, summary)
    draw(found, where.plots / "split.png", modes)
    if where.page is not None:
        put_tables(where.page, tables(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
