"""Where the demo's time goes, and what pool launch and the collocated loop gain.

Runs the demo's configuration, shortened, four times on this machine: synchronous and collocated with pool launch, and a small
synchronous run with pool and with process launch. Ratios are of seconds per update between the first and the last update of a
run, so that start-up, warm-up and evaluation are left out. The last line is JSON:

{"bench": "demo", "collocated_speedup": ..., "pool_speedup": ..., "share": {"sampling": ..., "harness": ..., ...}}
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from whippletree.loop.metrics import Log
from whippletree.ui.data import Breakdown, read_run

ROOT = Path(__file__).resolve().parent.parent
SMALL = (
    "loop.groups_per_step=2",
    "loop.group_size=4",
    "loop.groups_in_flight=2",
    "control.concurrency=8",
    "sources.0.tasks.family={train = 64, heldout = 4}",
)


def run(directory: Path, *settings: str) -> Path:
    """One shortened run of the demo without evaluations beyond the two that every run has."""
    overrides = [f"--set={item}" for item in ("loop.eval_every=0", "loop.eval_samples=1", *settings)]
    command = [sys.executable, "-m", "whippletree.cli", "train", str(ROOT / "examples/demo.toml"), "--plain", "--run-dir"]
    subprocess.run([*command, str(directory), *overrides], check=True, stdout=subprocess.DEVNULL)
    return directory


def seconds_per_update(directory: Path) -> float:
    """Seconds from the first update's end to the last one's, over the updates between."""
    steps = Log(directory).steps()
    return (steps[-1].time - steps[0].time) / (len(steps) - 1)


def report(name: str, directory: Path) -> Breakdown:
    """Print a run's time breakdown."""
    parts = read_run(directory).breakdown
    values = msgspec.structs.asdict(parts)
    text = ", ".join(f"{key} {value:.1f} s" for key, value in values.items() if key != "wall")
    print(f"{name}: {seconds_per_update(directory):.2f} s per update; {text} (wall {parts.wall:.0f} s)", flush=True)
    return parts


def main() -> None:
    """Run everything and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8, help="updates of the two large runs")
    parser.add_argument("--small-steps", type=int, default=3, help="updates of the two small runs")
    arguments = parser.parse_args()
    print(f"machine: {platform.machine()}, {platform.system()}, Python {platform.python_version()}")
    print(f"workload: examples/demo.toml with {arguments.steps} updates; launch modes with 2 groups of 4")
    with tempfile.TemporaryDirectory(prefix="whippletree-bench-") as scratch:
        folder = Path(scratch)
        large, small = f"loop.steps={arguments.steps}", f"loop.steps={arguments.small_steps}"
        synchronous = run(folder / "synchronous", large, "loop.kind=synchronous")
        report("synchronous, pool", synchronous)
        collocated = run(folder / "collocated", large, "loop.kind=collocated")
        parts = report("collocated, pool", collocated)
        pool = run(folder / "pool", small, "loop.kind=synchronous", "control.launch=pool", *SMALL)
        report("small, pool", pool)
        process = run(folder / "process", small, "loop.kind=synchronous", "control.launch=process", *SMALL)
        report("small, process", process)
        spent = {key: value for key, value in msgspec.structs.asdict(parts).items() if key != "wall"}
        result = {
            "bench": "demo",
            "collocated_speedup": round(seconds_per_update(synchronous) / seconds_per_update(collocated), 3),
            "pool_speedup": round(seconds_per_update(process) / seconds_per_update(pool), 3),
            "share": {key: round(value / sum(spent.values()), 3) for key, value in spent.items()},
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
