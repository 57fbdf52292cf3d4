"""How fast learning is, as ratios measured in one run.

planner   fill, imbalance of ranks and CPU seconds of the packing plan at 1,000, 10,000 and 100,000 samples
steps     tokens/s of a training step: padded, packed end to end, and as trees, against the ideal
loops     tokens trained per second of wall time: synchronous, collocated and asynchronous, with straggling rollouts

The last line is JSON: plan_fill, plan_imbalance, plan_100k_s, packed_over_padded, tree_over_packed, tree_of_ideal,
collocated_over_sync, async_over_sync and more. Each part is a module of bench/learning_parts with `add_options` and `run`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from types import ModuleType

from learning_parts import loops, planner, steps

PARTS: dict[str, ModuleType] = {"planner": planner, "steps": steps, "loops": loops}


def main() -> None:
    """Measure everything and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"comma-separated: {','.join(PARTS)}")
    for part in PARTS.values():
        part.add_options(parser)
    arguments = parser.parse_args()
    wanted = list(filter(None, arguments.only.split(","))) or list(PARTS)
    unknown = set(wanted) - set(PARTS)
    if unknown:
        parser.error(f"--only: no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
    found: dict[str, float] = {}
    for name in wanted:
        found |= PARTS[name].run(arguments)
    print(json.dumps({"bench": "learning", **found}))


if __name__ == "__main__":
    main()
