"""One model trained in three real harnesses at once, in one of them, or in another: compared by tokens processed, in all four.

    python -m experiments.multi_harness --harnesses DIR

Fifteen runs of multi.toml, one after another: three mixes, five seeds. Then the grid of the first seed's policies (grid.py).
What is there is not made again. The agents have to be installed: `whippletree harness install codex claude-code pi`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.folding import put_tables
from experiments.multi_harness.fold import HARNESSES, draw, fold, tables
from experiments.multi_harness.grid import make_grid, read_grid
from experiments.running import PlannedRun, make_runs, places, read_results
from whippletree.files import write_json
from whippletree.ui.grid_pictures import draw_grid

HERE = Path(__file__).resolve().parent
SHARES = {"three": (1, 1, 1, 0), "codex": (0, 1, 0, 0), "mini": (1, 0, 0, 0)}
STEPS = {"three": 16, "codex": 14, "mini": 56}  # about as many tokens, each shared beginning counted once
SEEDS = (1, 2, 3, 4, 5)
GRID = "grid.json"
TOY_FAMILY = "family={train = 8, heldout = 2}"
TOY = (
    "loop.groups_per_step=3",
    "loop.group_size=2",
    "model.tiny.warmup.steps=20",
    f"model.tiny.{TOY_FAMILY}",
    *(f"sources.{number}.tasks.{TOY_FAMILY}" for number in range(len(HARNESSES))),
)


def planned(toy: bool = False, harnesses: str = "") -> list[PlannedRun]:
    """The runs, seed by seed, those of mini last. `harnesses`: where the agents are installed."""
    found = [
        PlannedRun(
            name=f"{mix}-{seed}",
            variant=mix,
            seed=seed,
            settings=(
                *(f"sources.{number}.share={share}" for number, share in enumerate(shares)),
                f"loop.steps={1 if toy else STEPS[mix]}",
                f"loop.eval_every={0 if toy else STEPS[mix] // 2}",
                *((f"control.harness_directory={harnesses}",) if harnesses else ()),
                *(TOY if toy else ()),
            ),
        )
        for seed in (SEEDS[:1] if toy else SEEDS)
        for mix, shares in SHARES.items()
        if not toy or mix == "three"
    ]
    return sorted(found, key=lambda plan: plan.variant == "mini")


def main(argv: Sequence[str] | None = None) -> int:
    """Make what is missing, fold, plot."""
    where = places(__doc__ or "", HERE, argv, installed=True)
    plans = planned(where.toy, where.harnesses)
    if where.make:
        make_runs(plans, HERE / "multi.toml", where.runs, where.results)
        first = [plan for plan in plans if plan.seed == SEEDS[0]]
        make_grid(HERE / "multi.toml", first, where.runs, where.results / GRID)
    found = read_results(plans, where.results)
    mixes = [mix for mix in SHARES if any(result.variant == mix for result in found)]
    summary = fold(found, mixes)
    write_json(where.summary, summary)
    draw(found, summary, where.plots / "multi-harness.png")
    grid = read_grid(where.results / GRID)
    if grid is not None:
        draw_grid(grid, where.plots / "multi-harness-grid.png")
    if where.page is not None:
        put_tables(where.page, tables(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
