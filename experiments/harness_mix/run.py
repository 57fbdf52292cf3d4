"""One model trained in one harness, or in three: the same number of rollouts, compared by tokens processed, in every harness.

    python experiments/harness_mix/run.py

Twelve runs of mix.toml, one after another: four mixes, three seeds. A run whose result is there is not made again.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from running import PlannedRun, arguments_of, make_runs, read_results

HARNESSES = ("mini-tool", "mini-text", "whitebox", "heldout")
MIXES = {
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
        for mix, shares in MIXES.items()
        if not toy or mix == "three"
    ]


def main() -> int:
    """Make what is missing, fold, plot."""
    arguments = arguments_of(__doc__ or "").parse_args()
    results = (arguments.results or HERE) / "results"
    plans = planned(arguments.toy)
    if not arguments.only_fold:
        make_runs(plans, HERE / "mix.toml", arguments.runs / "harness_mix", results)
    found = read_results(plans, results)
    print(len(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
