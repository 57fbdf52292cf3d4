"""The packing planner on heavy-tailed lengths: how full rows are, how even ranks, how long planning takes.

Lengths in tokens are lognormal (median 3,000, sigma 1), cut to [200, token budget]: what agents' rollouts look like, most short
and some as long as the context. Three quarters of the rollouts are one sample, the others two or three. Fill and imbalance are
the worst over all sizes; seconds are CPU seconds of one thread, of the fastest of three plans (wall time is printed beside it).

Trees are groups of eight samples behind a prompt (lognormal, median 1,000, sigma 0.5); each goes on by a median of 2,000.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from whippletree.batching import BatchPlan, PrefixOrder, SampleLength, UpdatePlan, plan_batch
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


def groups(count: int, budget: int, seed: int) -> tuple[list[SampleLength], PrefixOrder]:
    """So many samples in groups of eight, and what they share."""
    draw = np.random.default_rng(seed)
    prompts = np.clip(draw.lognormal(np.log(1000), 0.5, count // 8), 100, budget // 4).astype(int).repeat(8)
    lengths = prompts + np.clip(draw.lognormal(np.log(2000), 1.0, count), 100, budget - budget // 4).astype(int)
    shared = np.where(np.arange(count) % 8, prompts, 0)
    names = [f"g{number // 8:06d}-m{number % 8}" for number in range(count)]
    order = PrefixOrder(
        names=tuple(names),
        lengths=tuple(lengths.tolist()),
        shared=tuple(shared.tolist()),
        tokens=int(lengths.sum()),
        distinct=int(lengths.sum() - shared.sum()),
    )
    samples = zip(names, lengths.tolist(), strict=True)
    return [SampleLength(sample_id=name, rollout_id=name, tokens=tokens) for name, tokens in samples], order


def fastest(
    samples: list[SampleLength], config: PackingConfig, ranks: int, order: PrefixOrder | None = None
) -> tuple[BatchPlan, float, float]:
    """The plan, and CPU and wall seconds of the fastest time that it was made."""
    taken = []
    for _ in range(TURNS):
        wall, processor = time.perf_counter(), time.process_time()
        plan = plan_batch(samples, config, ranks, order)
        taken.append((time.process_time() - processor, time.perf_counter() - wall))
    return plan, *min(taken)


def tell(what: str, update: UpdatePlan, processor: float, wall: float) -> None:
    """One line."""
    print(
        f"planner: {what} on {len(update.ranks)} ranks: fill {update.fill:.4f}, imbalance {update.imbalance:.4f}, waiting "
        f"{update.waiting:.4f}, {len(update.ranks[0])} micro-batches, {update.empty_rows} rows without samples, "
        f"{update.tokens / update.distinct_tokens:.3f} of the distinct tokens, {processor:.3f} s of CPU ({wall:.3f} s)",
        flush=True,
    )


def run(arguments: argparse.Namespace) -> dict[str, float]:
    """Plan 1,000, 10,000 and 100,000 samples, end to end and as trees."""
    config = PackingConfig(token_budget=arguments.budget)
    found: dict[str, float] = {"plan_fill": 1.0, "plan_imbalance": 0.0, "plan_waiting": 0.0}
    for count in SIZES:
        plan, processor, wall = fastest(heavy_tail(count, arguments.budget, arguments.seed), config, arguments.ranks)
        (update,) = plan.updates
        tell(f"{count} samples", update, processor, wall)
        found["plan_fill"] = min(found["plan_fill"], round(update.fill, 4))
        found["plan_imbalance"] = max(found["plan_imbalance"], round(update.imbalance, 4))
        found["plan_waiting"] = max(found["plan_waiting"], round(update.waiting, 4))
        found[f"plan_{count // 1000}k_s"] = round(processor, 3)
    trees = PackingConfig(token_budget=arguments.budget, packing="tree")
    for count in SIZES:
        samples, order = groups(count, arguments.budget, arguments.seed)
        plan, processor, wall = fastest(samples, trees, arguments.ranks, order)
        (update,) = plan.updates
        tell(f"{count} samples in trees", update, processor, wall)
        found["tree_plan_imbalance"] = max(found.get("tree_plan_imbalance", 0.0), round(update.imbalance, 4))
        found[f"tree_plan_{count // 1000}k_s"] = round(processor, 3)
    return found
