"""The packing planner on heavy-tailed lengths: how full rows are, how even ranks, how long planning takes.

Lengths in tokens are lognormal (median 3,000, sigma 1), cut to [200, token budget]: what agents' rollouts look like, most short
and some as long as the context. Three quarters of the rollouts are one sample, the others two or three. Fill and imbalance are
the worst over all sizes; seconds are CPU seconds of one thread, of the fastest of three plans (wall time is printed beside it).
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from whippletree.batching import BatchPlan, SampleLength, plan_batch
from whippletree.batching.config import PackingConfig

SIZES = (1_000, 10_000, 100_000)
TURNS = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this part."""
    parser.add_argument("--ranks", type=int, default=8, help="planner: data-parallel ranks")
    parser.add_argument("--budget", type=int, default=16_384, help="planner: tokens of one row")
    parser.add_argument("--seed", type=int, default=0, help="planner: of the lengths")


def heavy_tail(count: int, budget: int, seed: int) -> list[SampleLength]:
    """So many samples."""
    draw = np.random.default_rng(seed)
    tokens = np.clip(draw.lognormal(np.log(3000), 1.0, count), 200, budget).astype(int)
    parts = draw.choice([1, 2, 3], size=count, p=[0.75, 0.15, 0.1])
    owners = np.repeat(np.arange(count), parts)[:count]
    return [
        SampleLength(sample_id=f"r{owner}/{number}", rollout_id=f"r{owner}", tokens=int(length))
        for number, (owner, length) in enumerate(zip(owners, tokens, strict=True))
    ]


def fastest(samples: list[SampleLength], config: PackingConfig, ranks: int) -> tuple[BatchPlan, float, float]:
    """The plan, and CPU and wall seconds of the fastest time that it was made."""
    taken = []
    for _ in range(TURNS):
        wall, processor = time.perf_counter(), time.process_time()
        plan = plan_batch(samples, config, ranks)
        taken.append((time.process_time() - processor, time.perf_counter() - wall))
    return plan, *min(taken)


def run(arguments: argparse.Namespace) -> dict[str, float]:
    """Plan 1,000, 10,000 and 100,000 samples."""
    config = PackingConfig(token_budget=arguments.budget)
    found: dict[str, float] = {"plan_fill": 1.0, "plan_imbalance": 0.0, "plan_waiting": 0.0}
    for count in SIZES:
        plan, processor, wall = fastest(heavy_tail(count, arguments.budget, arguments.seed), config, arguments.ranks)
        (update,) = plan.updates
        print(
            f"planner: {count} samples on {arguments.ranks} ranks: fill {update.fill:.4f}, imbalance {update.imbalance:.4f}, "
            f"waiting {update.waiting:.4f}, {len(update.ranks[0])} micro-batches, {update.empty_rows} rows without samples, "
            f"{processor:.3f} s of CPU ({wall:.3f} s)",
            flush=True,
        )
        found["plan_fill"] = min(found["plan_fill"], round(update.fill, 4))
        found["plan_imbalance"] = max(found["plan_imbalance"], round(update.imbalance, 4))
        found["plan_waiting"] = max(found["plan_waiting"], round(update.waiting, 4))
        found[f"plan_{count // 1000}k_s"] = round(processor, 3)
    return found
