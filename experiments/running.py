"""What the experiments share: making a list of runs one after another, each once, and reading what they left.

    for each run:  result there? ──yes──► skip
                      └─no─► `whippletree train` (or --resume of a run directory that was cut off) ─► read the record ─► result

Run directories lie below `runs/experiments`; a result is a small JSON file beside the experiment, written when its run is over.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from whippletree.batching.trees import prefix_order
from whippletree.batching.weights import SampleTokens, loss_weights
from whippletree.configuration import load
from whippletree.errors import ConfigurationError
from whippletree.files import locked, write_json
from whippletree.gateway.history import offered_tools
from whippletree.loop.batch import collect
from whippletree.loop.config import RunConfig
from whippletree.loop.layout import Layout
from whippletree.loop.metrics import EvalMetrics, Log, mean
from whippletree.protocols import Store
from whippletree.store import open_store
from whippletree.types import ParsedMessage, Rollout, Sample, Struct

ROOT = Path(__file__).resolve().parents[1]


class PlannedRun(Struct):
    """A run of an experiment: the settings that it changes in the experiment's run file.

    Example: PlannedRun(name="token-mean-1", variant="token-mean", seed=1, settings=("batching.weights.mode=token-mean",))
    """

    name: str
    variant: str
    seed: int
    settings: tuple[str, ...] = ()


class Step(Struct):
    """One update. `tokens`: those that the model processed for it, the sequences of all samples of its rollouts; `entropy`: the
    mean of -log p over the sampled tokens (nats), an unbiased estimate at temperature 1; `weight_spread`: the largest weight of
    a trained token over the smallest; `negative_share`: the part of the batch's weight that lies on failed rollouts;
    `samples_per_rollout`: of the rollouts with a sample; `distinct`: tokens of the same sequences with every beginning that
    several of them share counted once, as tree packing computes it; `fed`: tokens that the engine was given and sampled, call
    by call, and `computed`: those of them that it did not have in its cache; `misnamed`: share of the calls of tools that name
    one which the harness does not have.

    Example: Step(step=0, reward=0.25, tokens=2400, grad_norm=0.5, entropy=1.1, weight_spread=8.0, negative_share=0.7, ...)
    """

    step: int
    reward: float
    turns: float
    tokens: int
    grad_norm: float
    entropy: float
    weight_spread: float
    negative_share: float
    samples_per_rollout: float
    distinct: int = 0
    fed: int = 0
    computed: int = 0
    misnamed: float = 0.0


class Evaluation(Struct):
    """One evaluation: (passed, judged) by source. `misnamed`: calls of tools that the harness does not have, and all calls of
    tools that the model made, by source.

    Example: Evaluation(step=8, by_source={"trail": (30, 36)}, misnamed={"trail": (2, 104)})
    """

    step: int
    by_source: dict[str, tuple[int, int]]
    failed: int = 0
    misnamed: dict[str, tuple[int, int]] = {}


class RunResult(Struct, omit_defaults=False):
    """What is kept of a run. Example: RunResult(name="token-mean-1", variant="token-mean", seed=1, steps=(...), evals=(...))"""

    name: str
    variant: str
    seed: int
    steps: tuple[Step, ...]
    evals: tuple[Evaluation, ...]
    failed_rollouts: int = 0


@dataclass(frozen=True)
class Places:
    """Where an experiment's files lie. `page`: whose tables are written, None for none; `make`: whether runs are made."""

    runs: Path
    results: Path
    summary: Path
    plots: Path
    page: Path | None
    toy: bool
    make: bool
    harnesses: str = ""


def places(description: str, here: Path, argv: Sequence[str] | None = None, *, installed: bool = False) -> Places:
    """Read the command line that every experiment has. `here`: the experiment's folder; `installed`: it needs harnesses that
    are installed, and has an option that says where."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/experiments", help="where run directories lie")
    parser.add_argument(
        "--output", type=Path, help="results, summary and plots go here; default: where the documentation has them"
    )
    parser.add_argument("--toy", action="store_true", help="a few small runs, to see that it works; needs --output")
    parser.add_argument("--only-fold", action="store_true", help="make no run: fold and plot the results that are there")
    if installed:
        parser.add_argument(
            "--harnesses", default="", help="where `whippletree harness install` put them; default: its default"
        )
    found = parser.parse_args(argv)
    if found.toy and found.output is None:
        parser.error("--toy needs --output: the documentation reports on the whole experiment")
    base = found.output or here
    return Places(
        runs=found.runs / here.name,
        results=base / "results",
        summary=base / "summary.json",
        plots=found.output or ROOT / "docs/images",
        page=None if found.output else ROOT / "docs/experiments.md",
        toy=found.toy,
        make=not found.only_fold,
        harnesses=str(Path(found.harnesses).resolve()) if installed and found.harnesses else "",
    )


def make_runs(
    planned: Sequence[PlannedRun], run_file: Path, runs: Path, results: Path, say: Callable[[str], None] = print
) -> None:
    """Make those that have no result yet, one after another. Raises ConfigurationError where another process makes them,
    CalledProcessError where a run fails."""
    refused = ConfigurationError(f"another process makes the runs in {runs}", "wait for it, or give other --runs")
    with locked(runs / ".lock", refused):
        for number, plan in enumerate(planned, 1):
            path = results / f"{plan.name}.json"
            if path.is_file():
                continue
            say(f"run {number} of {len(planned)}: {plan.name}")
            _train(plan, run_file, runs / plan.name)
            write_json(path, read_result(plan, runs / plan.name))


def read_results(planned: Sequence[PlannedRun], results: Path) -> list[RunResult]:
    """Those that are there."""
    paths = [results / f"{plan.name}.json" for plan in planned]
    return [msgspec.json.decode(path.read_bytes(), type=RunResult) for path in paths if path.is_file()]


def _train(plan: PlannedRun, run_file: Path, directory: Path) -> None:
    layout = Layout(directory.resolve())
    if layout.summary.is_file():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "whippletree.cli", "train", "--plain"]
    if layout.services_file.is_file():
        command += ["--resume", str(directory)]
    else:
        overrides = (f"run.name={plan.name}", f"run.seed={plan.seed}", *plan.settings)
        command += [str(run_file), "--run-dir", str(directory), "--overwrite", *(f"--set={item}" for item in overrides)]
    with directory.with_suffix(".out").open("a") as output:
        subprocess.run(command, check=True, stdout=output, stderr=subprocess.STDOUT)


def read_result(plan: PlannedRun, directory: Path) -> RunResult:
    """Fold the record of a finished run."""
    layout = Layout(directory.resolve())
    config, log = load(RunConfig, layout.config), Log(layout.directory)
    store = open_store(layout.store)
    try:
        rollouts = {rollout.spec.rollout_id: rollout for rollout in store.rollouts()}
        lines = {line.step: line for line in log.steps()}
        steps = tuple(
            _step(store, [rollouts[name] for name in record.rollout_ids], config, record.step, lines[record.step].grad_norm)
            for record in store.steps()
        )
        evals = tuple(_evaluation(store, line) for line in log.evals())
    finally:
        store.close()
    failed = sum(rollout.state == "failed" for rollout in rollouts.values())
    return RunResult(name=plan.name, variant=plan.variant, seed=plan.seed, steps=steps, evals=evals, failed_rollouts=failed)


def _evaluation(store: Store, line: EvalMetrics) -> Evaluation:
    counts = {source: [0, 0] for source in line.by_source}
    for rollout in store.rollouts(purpose="eval"):
        if rollout.spec.step != line.step or rollout.reward is None:
            continue
        wrong, made = _tool_calls(store, rollout)
        counts[rollout.spec.source][0] += wrong
        counts[rollout.spec.source][1] += made
    return Evaluation(
        step=line.step,
        by_source=line.by_source,
        failed=line.failed + line.cut,
        misnamed={source: (wrong, made) for source, (wrong, made) in counts.items()},
    )


def _tool_calls(store: Store, rollout: Rollout) -> tuple[int, int]:
    """Calls of tools that were not offered, and all calls of tools, of a rollout's last attempt."""
    calls = store.calls(rollout.spec.rollout_id, rollout.attempt)
    payloads = {call.call_id: store.payload(call) for call in calls}
    wrong = total = 0
    for call in calls:
        known = {tool.name for tool in offered_tools(call, payloads)}
        made = msgspec.json.decode(payloads[call.call_id].reply_json, type=ParsedMessage).tool_calls
        wrong += sum(one.name not in known for one in made)
        total += len(made)
    return wrong, total


def _tokens_of(sample: Sample) -> SampleTokens:
    trained = int(sample.trained.sum())
    return SampleTokens(sample_id=sample.sample_id, rollout_id=sample.rollout_id, trained_tokens=trained)


def _step(store: Store, rollouts: Sequence[Rollout], config: RunConfig, step: int, grad_norm: float) -> Step:
    judged = [rollout for rollout in rollouts if rollout.reward is not None]
    samples: dict[str, list[Sample]] = {}
    calls = fed = cached = 0
    named = [_tool_calls(store, rollout) for rollout in judged]
    for rollout in judged:
        trace, samples[rollout.spec.rollout_id] = collect(store, rollout, config.traces)
        calls += len(trace.nodes)
        fed += sum(node.call.prompt_tokens + node.call.sampled_tokens for node in trace.nodes)
        cached += sum(node.call.cached_tokens for node in trace.nodes)
    every = [sample for of_rollout in samples.values() for sample in of_rollout]
    order = prefix_order({sample.sample_id: sample.token_ids for sample in every})
    sizes = [_tokens_of(sample) for sample in every]
    weights = loss_weights(sizes, config.batching.weights.mode)
    lost = {rollout.spec.rollout_id for rollout in judged if not rollout.reward}
    on_lost = sum(weights.per_token[size.sample_id] * size.trained_tokens for size in sizes if size.rollout_id in lost)
    given = [weight for weight in weights.per_token.values() if weight]
    surprise = [float(-value) for sample in every for value in sample.logprobs[sample.trained]]
    return Step(
        step=step,
        reward=mean(rollout.reward or 0.0 for rollout in judged) or 0.0,
        turns=calls / max(1, len(judged)),
        tokens=sum(len(sample.token_ids) for sample in every),
        grad_norm=grad_norm,
        entropy=mean(surprise) or 0.0,
        weight_spread=max(given) / min(given) if given else 1.0,
        negative_share=on_lost / weights.total if weights.total else 0.0,
        samples_per_rollout=len(every) / max(1, sum(bool(found) for found in samples.values())),
        distinct=order.distinct,
        fed=fed,
        computed=fed - cached,
        misnamed=sum(wrong for wrong, _ in named) / max(1, sum(made for _, made in named)),
    )
