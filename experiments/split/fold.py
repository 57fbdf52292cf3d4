"""What the split experiment found, from its results. Pure but for the picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, pstdev

from experiments.folding import Estimate, band, estimate, figure, of_variant, rate, table
from experiments.running import RunResult
from whippletree.types import Struct

MODES = ("rollout-mean", "token-mean", "sequence-mean")
COLOURS = {"rollout-mean": "#1f5fbf", "token-mean": "#c2660c", "sequence-mean": "#2e8b57"}
PANELS = {
    "Training reward": "reward",
    "Gradient norm": "grad_norm",
    "Entropy of sampled tokens, nats": "entropy",
    "Turns per rollout": "turns",
    "Largest over smallest token weight": "weight_spread",
}
LEARNED = 0.8
"""Training reward of an update from which a run counts as having learned."""


class ModeSummary(Struct, omit_defaults=False):
    """One normalisation, over its seeds. `success_*`: held-out success before, half way and after; `updates_to_learn`: the
    first update with a reward of LEARNED or more (all of them, where there was none); `late_*`: over the second half of the
    updates: mean reward, its standard deviation from update to update, mean entropy; `largest_norm`: the largest gradient norm
    of any update; `longest_turns`: the most turns per rollout of any update; `weight_spread`, `samples_per_rollout`: means over
    updates; `negative_share`: weight of failed rollouts in the first update.

    Example: ModeSummary(success_before=..., success_half=..., success_after=..., ...)
    """

    success_before: Estimate
    success_half: Estimate
    success_after: Estimate
    updates_to_learn: Estimate
    late_reward: Estimate
    late_wobble: Estimate
    largest_norm: Estimate
    late_entropy: Estimate
    longest_turns: Estimate
    weight_spread: Estimate
    samples_per_rollout: Estimate
    negative_share: Estimate


class SplitSummary(Struct, omit_defaults=False):
    """The experiment. `gain`: held-out success after all updates, less that of the first mode from the same warm-up (paired by
    seed). Example: SplitSummary(updates=16, seeds=3, modes={"rollout-mean": ModeSummary(...)}, gain={"token-mean": ...})"""

    updates: int
    seeds: int
    modes: dict[str, ModeSummary]
    gain: dict[str, Estimate]


def fold(results: Sequence[RunResult], modes: Sequence[str] = MODES) -> SplitSummary:
    """Raises ValueError where a mode has no run."""
    runs = {mode: of_variant(results, mode) for mode in modes}
    after = {mode: {run.seed: rate(run.evals[-1]) for run in found} for mode, found in runs.items()}
    first = after[modes[0]]
    return SplitSummary(
        updates=len(results[0].steps),
        seeds=len(first),
        modes={mode: _mode(found) for mode, found in runs.items()},
        gain={mode: estimate(after[mode][seed] - first[seed] for seed in first) for mode in modes[1:]},
    )


def _mode(runs: Sequence[RunResult]) -> ModeSummary:
    def over(value: Callable[[RunResult], float]) -> Estimate:
        return estimate(value(run) for run in runs)

    def late(run: RunResult) -> list[float]:
        return [step.reward for step in run.steps[len(run.steps) // 2 :]]

    return ModeSummary(
        success_before=over(lambda run: rate(run.evals[0])),
        success_half=over(lambda run: rate(run.evals[len(run.evals) // 2])),
        success_after=over(lambda run: rate(run.evals[-1])),
        updates_to_learn=over(_learned),
        late_reward=over(lambda run: fmean(late(run))),
        late_wobble=over(lambda run: pstdev(late(run))),
        largest_norm=over(lambda run: max(step.grad_norm for step in run.steps)),
        late_entropy=over(lambda run: fmean(step.entropy for step in run.steps[len(run.steps) // 2 :])),
        longest_turns=over(lambda run: max(step.turns for step in run.steps)),
        weight_spread=over(lambda run: fmean(step.weight_spread for step in run.steps)),
        samples_per_rollout=over(lambda run: fmean(step.samples_per_rollout for step in run.steps)),
        negative_share=over(lambda run: run.steps[0].negative_share),
    )


def _learned(run: RunResult) -> int:
    return next((step.step + 1 for step in run.steps if step.reward >= LEARNED), len(run.steps))


def tables(summary: SplitSummary) -> dict[str, str]:
    """The tables of the page."""
    rows = [
        ("held-out success, before", "success_before"),
        (f"after {summary.updates // 2} updates", "success_half"),
        (f"after {summary.updates}", "success_after"),
        (f"first update with a training reward of {LEARNED}", "updates_to_learn"),
        ("training reward, second half", "late_reward"),
        ("its standard deviation between updates", "late_wobble"),
        ("largest gradient norm of any update", "largest_norm"),
        ("entropy of the second half, nats per token", "late_entropy"),
        ("most turns per rollout of any update", "longest_turns"),
        ("samples per rollout", "samples_per_rollout"),
        ("largest weight of a token over the smallest", "weight_spread"),
        ("weight of failed rollouts, first update", "negative_share"),
    ]
    body = [[label, *(str(getattr(found, key)) for found in summary.modes.values())] for label, key in rows]
    first = next(iter(summary.modes))
    gain = [str(summary.gain[mode]) if mode in summary.gain else "" for mode in summary.modes]
    body.insert(3, [f"the same, less {first}'s from the same warm-up", *gain])
    return {"split": table(["", *summary.modes], body)}


def draw(results: Sequence[RunResult], path: Path, modes: Sequence[str] = MODES) -> None:
    """Write the picture: six panels over updates, a line per normalisation with the range of its seeds."""
    canvas, axes = figure(14, 7.5, 2, 3)
    for axis, (title, name) in zip(axes.flat, PANELS.items(), strict=False):
        axis.set_title(title)
        axis.grid(axis="y")
        for mode in modes:
            runs = of_variant(results, mode)
            curves = [[float(getattr(step, name)) for step in run.steps] for run in runs]
            band(axis, [step.step + 1 for step in runs[0].steps], curves, COLOURS[mode], mode)
        axis.set_xlabel("update")
        axis.set_ylim(bottom=0)
    last = axes[1][2]
    last.set_title("Held-out success, each seed")
    for mode in modes:
        for number, run in enumerate(of_variant(results, mode)):
            points = [(line.step, rate(line)) for line in run.evals]
            label = mode if number == 0 else None
            last.plot(*zip(*points, strict=True), "o-", color=COLOURS[mode], alpha=0.8, lw=1.5, label=label)
    last.set_ylim(0, 1.02)
    last.grid(axis="y")
    last.set_xlabel("update")
    axes[0][0].legend(loc="lower right")
    canvas.savefig(path)
