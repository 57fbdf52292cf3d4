"""Tokens/s of a training step by layout of its rows: padded, packed end to end, and as trees.

| traces | what they share |
|---|---|
| single-rollout | one rollout with retried tool calls, and side calls that start from the same history |
| group | eight rollouts of one task: the same instructions, then each its own way |
| compaction-heavy | four rollouts that compacted five times: each segment begins with instructions and task, then a summary |

A step is forward, loss and backward over all samples, on a small Qwen3 in float32 on one thread. Ratios are of seconds in the
same run, best of `rounds`. The ideal saving of a tree is in floating-point operations: those of every sample alone over those
of the distinct tokens, each looking at its own path.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transformers

from whippletree.batching import Packing, SampleLength, UpdatePlan, plan_batch, prefix_order
from whippletree.batching.config import PackingConfig
from whippletree.learner.columns import given, make_tokens
from whippletree.learner.config import LearnerConfig
from whippletree.learner.losses.base import Tokens
from whippletree.learner.model import prepare_model
from whippletree.learner.objective import Objective
from whippletree.learner.rows import build_row
from whippletree.learner.scoring import head, row_logprobs
from whippletree.types import Sample

VOCABULARY = 2048
BUDGET = 2048
OBJECTIVE = Objective(LearnerConfig())


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this part."""
    parser.add_argument("--rounds", type=int, default=5, help="steps: runs of each step, the fastest of which counts")


def single_rollout(draw: np.random.Generator) -> list[list[int]]:
    """One conversation of eight turns; at every second one, two further calls branch off."""
    history = _ids(draw, 200)
    found = []
    for turn in range(8):
        history = [*history, *_ids(draw, 75)]
        if turn % 2:
            found += [[*history, *_ids(draw, 30)] for _ in range(2)]
    return [*found, history]


def group(draw: np.random.Generator) -> list[list[int]]:
    """Eight rollouts behind one prompt of 300 tokens, of very different lengths."""
    prompt = _ids(draw, 300)
    return [[*prompt, *_ids(draw, int(length))] for length in draw.lognormal(4.6, 0.8, 8).clip(20, 700)]


def compaction_heavy(draw: np.random.Generator) -> list[list[int]]:
    """Four rollouts of six segments; all begin with the same 250 tokens, those of one rollout with 50 more."""
    instructions = _ids(draw, 250)
    found = []
    for _ in range(4):
        task = [*instructions, *_ids(draw, 50)]
        found += [[*task, *_ids(draw, int(draw.integers(40, 200)))] for _ in range(6)]
    return found


WORKLOADS: dict[str, Callable[[np.random.Generator], list[list[int]]]] = {
    "single-rollout": single_rollout,
    "group": group,
    "compaction-heavy": compaction_heavy,
}


def _ids(draw: np.random.Generator, count: int) -> list[int]:
    found: list[int] = draw.integers(0, VOCABULARY, count).tolist()
    return found


def samples_of(sequences: Sequence[list[int]]) -> list[Sample]:
    """Of what is new in each sequence, the second half was sampled and is trained: each token once, as in a rollout's trace."""
    made = []
    before: list[int] = []
    for number, ids in enumerate(sequences):
        same = next((i for i, (a, b) in enumerate(zip(ids, before, strict=False)) if a != b), min(len(ids), len(before)))
        trained = np.arange(len(ids)) >= (same + len(ids) + 1) // 2
        before = ids
        made.append(
            Sample(
                sample_id=f"s{number:03d}",
                rollout_id=f"r{number:03d}",
                group_id="g",
                call_ids=(),
                token_ids=np.array(ids, np.int32),
                trained=trained,
                logprobs=np.where(trained, -7.0, 0.0).astype(np.float32),
                versions=np.zeros(len(ids), np.int32),
            )
        )
    return made


def small_model() -> Any:
    """A Qwen3 of 5 million parameters, in which attention takes about the share that it has in a large model."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
    )
    return prepare_model(transformers.Qwen3ForCausalLM(config))


def operations(model: Any, tokens: int, pairs: int) -> float:
    """Of a forward: 2 per weight and token, and 4 per pair of tokens that see each other, layer and channel of the heads."""
    config = model.config
    weights = sum(p.numel() for name, p in model.named_parameters() if "embed" not in name and "head" not in name)
    return 2.0 * weights * tokens + 4.0 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * pairs


def ideal_saving(model: Any, samples: Sequence[Sample]) -> float:
    """Operations of samples alone over those of one forest of all of them."""
    lengths = [len(sample.token_ids) for sample in samples]
    alone = operations(model, sum(lengths), sum(length * (length + 1) // 2 for length in lengths))
    names = dict.fromkeys([s.rollout_id for s in samples] + [s.sample_id for s in samples], 1.0)
    forest = build_row(samples, names, names)
    return alone / operations(model, len(forest.token_ids), int((forest.positions + 1).sum()))


def planned(samples: Sequence[Sample], packing: Packing) -> UpdatePlan:
    """The plan of one update on one rank."""
    lengths = [SampleLength(sample_id=s.sample_id, rollout_id=s.rollout_id, tokens=len(s.token_ids)) for s in samples]
    order = prefix_order({sample.sample_id: sample.token_ids for sample in samples})
    (update,) = plan_batch(lengths, PackingConfig(packing=packing, token_budget=BUDGET), 1, order).updates
    return update


def descend(tokens: Tokens) -> None:
    """The backward pass of the default loss."""
    (OBJECTIVE(tokens).per_token * tokens.weights).sum().backward()  # type: ignore[no-untyped-call]


def by_rows(model: Any, samples: Sequence[Sample], packing: Packing) -> Callable[[], None]:
    """A step over rows of that packing. The rows are made here, outside of what is timed."""
    by_id = {sample.sample_id: sample for sample in samples}
    advantages, weights = dict.fromkeys((s.rollout_id for s in samples), 1.0), dict.fromkeys(by_id, 1e-3)
    (planned_rows,) = planned(samples, packing).ranks
    rows = [build_row([by_id[name] for name in row.sample_ids], advantages, weights, shared=row.shared) for row in planned_rows]

    def step() -> None:
        for row in rows:
            descend(make_tokens(row, given(row), {"logprobs": row_logprobs(model, row, 1.0)}, "sampler"))

    return step


def padded(model: Any, samples: Sequence[Sample]) -> Callable[[], None]:
    """A step over batches that are padded to their longest sample: as many samples as fit BUDGET padded tokens."""
    batches: list[list[Sample]] = []
    for sample in samples:  # in the order in which they came, as a plain data loader has them
        longest = max([len(sample.token_ids), *(len(other.token_ids) for other in (batches[-1] if batches else []))])
        if batches and longest * (len(batches[-1]) + 1) <= BUDGET:
            batches[-1].append(sample)
        else:
            batches.append([sample])
    laid = []
    for batch in batches:
        width = max(len(sample.token_ids) for sample in batch)
        ids, mask = torch.zeros(len(batch), width, dtype=torch.long), torch.zeros(len(batch), width, dtype=torch.long)
        for number, sample in enumerate(batch):
            ids[number, : len(sample.token_ids)] = torch.as_tensor(sample.token_ids.astype(np.int64))
            mask[number, : len(sample.token_ids)] = 1
        at = [np.flatnonzero(sample.trained) for sample in batch]
        rows = torch.as_tensor(np.concatenate([np.full(len(own), number) for number, own in enumerate(at)]))
        laid.append((ids, mask, rows, torch.as_tensor(np.concatenate(at))))

    def step() -> None:
        for ids, mask, rows, at in laid:
            hidden = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            logits = head(model, hidden[rows, at - 1])
            logprobs = logits.gather(-1, ids[rows, at][:, None])[:, 0] - torch.logsumexp(logits, -1)
            sampled, ones = torch.full_like(logprobs, -7.0), torch.ones_like(logprobs)
            descend(
                Tokens(
                    logprobs=logprobs,
                    sampler_logprobs=sampled,
                    proximal_logprobs=logprobs.detach(),
                    old_logprobs=sampled,
                    advantages=ones,
                    weights=ones * 1e-3,
                    sequences=rows,
                )
            )

    return step


def best(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Seconds of the fastest run of each, taken in turns so that a busy moment of the machine meets all of them."""
    found = dict.fromkeys(steps, float("inf"))
    for turn in range(rounds + 1):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if turn:  # the first one warms up
                found[name] = min(found[name], time.perf_counter() - started)
    return found


def run(arguments: argparse.Namespace) -> dict[str, float]:
    """Print a line per workload; `packed_over_padded` and the rest are means over them."""
    torch.set_num_threads(1)
    model = small_model()
    results: list[tuple[float, float, float]] = []
    print("traces            samples  tokens distinct | packed/padded  tree/packed  ideal  tree of ideal   tokens/s as tree")
    for name, make in WORKLOADS.items():
        samples = samples_of(make(np.random.default_rng(3)))
        plan = planned(samples, "tree")
        seconds = best(
            {
                "padded": padded(model, samples),
                "packed": by_rows(model, samples, "rows"),
                "tree": by_rows(model, samples, "tree"),
            },
            arguments.rounds,
        )
        ideal = ideal_saving(model, samples)
        packed_over_padded = seconds["padded"] / seconds["packed"]
        tree_over_packed = seconds["packed"] / seconds["tree"]
        results.append((packed_over_padded, tree_over_packed, tree_over_packed / ideal))
        print(
            f"{name:<17} {len(samples):>7} {plan.sample_tokens:>7} {plan.distinct_tokens:>8} | {packed_over_padded:>13.2f} "
            f"{tree_over_packed:>12.2f} {ideal:>6.2f} {tree_over_packed / ideal:>14.2f} "
            f"{plan.sample_tokens / seconds['tree']:>18.0f}"
        )
    means = [sum(column) / len(results) for column in zip(*results, strict=True)]
    return dict(zip(("packed_over_padded", "tree_over_packed", "tree_of_ideal"), (round(m, 3) for m in means), strict=True))
