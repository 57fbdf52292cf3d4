"""One model trained in one harness, or in three: the same number of rollouts, compared by tokens processed, in every harness.

    python -m experiments.harness_mix

Twelve runs of mix.toml, one after another: four mixes, three seeds. A run whose result is there is not made again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.folding import put_tables
from experiments.harness_mix.fold import HARNESSES, draw, fold, tables
from experiments.running import PlannedRun, make_runs, places, read_results
from whippletree.files import write_json

HERE = Path(__file__).resolve().parent
SHARES = {
    "mini-tool": (1, 0, 0, 0),
    "mini-text": (0, 1, 0, 0),
    "whitebox": (0, 0, 1, 0),
    "three": (1, 1, 1, 0),
}
SEEDS = (1, 2, 3)
TOY_FAMILY = "family={train = 8, heldout = 2}"
TOY = (
    "loop.steps=1",
    "loop.groups_per_step=3",
    "loop.group_size=2",
    "loop.eval_every=0",
    "model.tiny.warmup.steps=20",
    f"model.tiny.{TOY_FAMILY}",
    *(f"sources.{number}.tasks.{TOY_FAMILY}" for number in range(len(HARNESSES))),
)


def planned(toy: bool = False) -> list[PlannedRun]:
    """The runs, seed by seed."""
    return [
        PlannedRun(
            name=f"{mix}-{seed}",
            variant=mix,
            seed=seed,
            settings=(*(f"sources.{number}.share={share}" for number, share in enumerate(shares)), *(TOY if toy else ())),
        )
        for seed in (SEEDS[:1] if toy else SEEDS)
        for mix, shares in SHARES.items()
        if not toy or mix == "three"
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Make what is missing, fold, plot."""
    where = places(__doc__ or "", HERE, argv)
    plans = planned(where.toy)
    if where.make:
        make_runs(plans, HERE / "mix.toml", where.runs, where.results)
    found = read_results(plans, where.results)
    mixes = [mix for mix in SHARES if any(result.variant == mix for result in found)]
    summary = fold(found, mixes)
    write_json(where.summary, summary)
    draw(found, summary, where.plots / "harness-mix.png")
    if where.page is not None:
        put_tables(where.page, tables(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
