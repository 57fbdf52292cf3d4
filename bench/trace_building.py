"""Seconds to build the tree and the samples of one long attempt, at one, two and four times the size.

    python bench/trace_building.py

The attempt has a main conversation and 20 sub-agents whose calls are interleaved; every call goes on from the one before it in
its conversation, is stored as a delta, and one in ten of the sub-agents' calls is a retry. `build_growth_2x` and
`build_growth_4x` are the times of two and four times the work over that of the work: 2 and 4 are linear. CPU seconds are
counted, best of five.
"""

from __future__ import annotations

import time

import msgspec
import numpy as np

from whippletree.traces import build_samples, build_trace
from whippletree.types import Call, CallPayload, CallTimes, RolloutSpec, Sampling, VersionSpan

SPEC = RolloutSpec(rollout_id="r", group_id="g", source="s", task_id="t", task_path="/t", harness="h")


class Result(msgspec.Struct, frozen=True):
    """CPU seconds by size. Example: Result(build_1m_tokens_s=0.1, build_2m_tokens_s=0.2, build_4m_tokens_s=0.4, ...)"""

    build_1m_tokens_s: float
    build_2m_tokens_s: float
    build_4m_tokens_s: float
    build_growth_2x: float
    build_growth_4x: float


def make_attempt(calls: int, tokens: int, subagents: int = 20) -> tuple[list[Call], list[CallPayload]]:
    """An attempt of so many calls that stores so many tokens, its sub-agents interleaved with the main conversation."""
    draw = np.random.default_rng(calls)
    per_call = tokens // calls
    lengths = dict.fromkeys(range(subagents + 1), 0)
    last: dict[int, int] = {}
    again: dict[int, np.ndarray] = {}
    made: list[Call] = []
    payloads: list[CallPayload] = []
    for index in range(calls):
        thread = index % (subagents + 1)
        parent = last.get(thread)
        sampled = per_call // 5
        ids = draw.integers(0, 150_000, per_call, dtype=np.int32)
        prompt = again.pop(thread, ids[sampled:])
        made.append(
            Call(
                call_id=f"c{index}",
                rollout_id="r",
                attempt=1,
                index=index,
                digest=str(index),
                prompt_tokens=lengths[thread] + per_call - sampled,
                sampled_tokens=sampled,
                finish_reason="stop",
                times=CallTimes(received=float(index)),
                sampling=Sampling(),
                parent_call_id="" if parent is None else f"c{parent}",
                prefix_break="" if parent is not None else "new_thread",
                origin_call_id="c0" if thread and parent is None else "",
                versions=(VersionSpan(start=0, policy_version=1),),
                delivered=True,
            )
        )
        payloads.append(
            CallPayload(prompt_delta=prompt, sampled_ids=ids[:sampled], logprobs=np.full(sampled, -0.5, np.float32))
        )
        if not thread or draw.random() > 0.1:
            lengths[thread] += per_call
            last[thread] = index
        else:
            again[thread] = prompt  # the next call of the thread is a retry of this one
    return made, payloads


def seconds(calls: int, tokens: int, repeats: int = 5) -> float:
    """CPU seconds of building, best of some."""
    attempt = make_attempt(calls, tokens)
    taken = []
    for _ in range(repeats):
        started = time.process_time()
        samples = build_samples(build_trace(*attempt), SPEC)
        taken.append(time.process_time() - started)
        assert samples
    return min(taken)


def measure() -> Result:
    """Build 1, 2 and 4 million tokens in 1,000, 2,000 and 4,000 calls."""
    one, two, four = (seconds(1000 * times, 1_000_000 * times) for times in (1, 2, 4))
    return Result(one, two, four, two / one, four / one)


if __name__ == "__main__":
    print(msgspec.json.encode(measure()).decode())
