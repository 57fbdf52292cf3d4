"""GRPO under three loss normalisations in a harness that compacts often.

    python experiments/split/run.py

Nine runs of split.toml, one after another: three normalisations, three seeds. A run whose result is there is not made again.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from running import PlannedRun, arguments_of, make_runs, read_results

MODES = ("rollout-mean", "token-mean", "sequence-mean")
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


def main() -> int:
    """Make what is missing, fold, plot."""
    arguments = arguments_of(__doc__ or "").parse_args()
    results = (arguments.results or HERE) / "results"
    plans = planned(arguments.toy)
    if not arguments.only_fold:
        make_runs(plans, HERE / "split.toml", arguments.runs / "split", results)
    found = read_results(plans, results)
    print(len(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
