"""Cases of what reaches the learning side, on real parts"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from engine_parts import build, make_core

from whippletree.engines.embedded import api
from whippletree.errors import RequestError
from whippletree.learner.rows import build_row
from whippletree.traces import Trace, build_samples, build_trace, funnel
from whippletree.types import Call, CallPayload, CallTimes, RolloutSpec, Sampling, VersionSpan

SPEC = RolloutSpec(rollout_id="r", group_id="g", source="s", task_id="t", task_path="/t", harness="h")
LIMITS = api.Limits(vocabulary=256, context=1000, eos_ids=frozenset(), seed=0)


def call(prompt_tokens: int, sampled_tokens: int, **fields: object) -> Call:
    return Call(
        call_id="c", rollout_id="r", attempt=1, index=0, digest="d", prompt_tokens=prompt_tokens, sampled_tokens=sampled_tokens,
        times=CallTimes(received=1.0), sampling=Sampling(max_tokens=300), delivered=True, prefix_break="first", **fields,
    )  # fmt: skip


def traced(found: Call, payload: CallPayload | None) -> Trace:
    return build_trace([found], [payload])


def test_C11_columns_end_together_at_the_limit_and_a_prompt_beyond_it_is_dropped_with_its_reason(tmp_path: Path):
    """prompt 900, completion 300, limit 1000: the engine ends the turn at the limit, so nothing is cut afterwards."""
    torch.set_num_threads(1)
    core = make_core(build(tmp_path, "qwen3", 1, num_hidden_layers=1), slots=1, context=1000, prefill_tokens=900)
    prompt = [number % 251 for number in range(900)]
    body = api.CompletionBody(prompt=prompt, max_tokens=300, logprobs=0, return_token_ids=True)
    sequence = api.accept(body, "c", LIMITS)
    core.submit(sequence)
    while core.busy:
        core.step()
    chunks = sequence.take(0)
    ids = [token for chunk in chunks for token in chunk.token_ids]
    logprobs = [value for chunk in chunks for value in chunk.logprobs]
    assert chunks[-1].finish_reason == "length"
    assert len(ids) == len(logprobs) == 100
    payload = CallPayload(
        prompt_delta=np.array(prompt, np.int32), sampled_ids=np.array(ids, np.int32), logprobs=np.array(logprobs, np.float32)
    )
    recorded = call(900, 100, finish_reason="length", versions=(VersionSpan(start=0, policy_version=0),))
    (sample,) = build_samples(traced(recorded, payload), SPEC)
    assert {len(column) for column in (sample.token_ids, sample.trained, sample.logprobs, sample.versions)} == {1000}
    assert int(sample.trained.sum()) == 100 and bool(sample.trained[900:].all())
    row = build_row([sample], {"r": 1.0}, {"r.0": 0.01})
    assert len(row.targets) == len(row.sampler_logprobs) == len(row.versions) == len(row.weights) == 100

    with pytest.raises(RequestError, match="maximum context length is 1000 tokens"):
        api.accept(api.CompletionBody(prompt=[1] * 1000, max_tokens=300), "c", LIMITS)
    refused = traced(call(0, 0, finish_reason="error", error="maximum context length"), None)
    assert build_samples(refused, SPEC) == []
    (node,) = refused.nodes
    assert node.excluded == "no payload"
    assert funnel(refused).trained_tokens == 0
