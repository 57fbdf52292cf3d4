"""Cases of what becomes of captured calls: what is trained, what is left out, and what is said about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from whippletree.batching.weights import SampleTokens, loss_weights
from whippletree.errors import AlignmentError, FencedError
from whippletree.learner.config import LearnerConfig
from whippletree.loop.batch import build_batch
from whippletree.protocols import AttemptOutcome
from whippletree.store import SqliteStore, open_store
from whippletree.traces import Account, Trace, TracesConfig, alarm, build_samples, build_trace, funnel, load_trace, reconcile
from whippletree.traces.atif import VERSION, Agent, Metrics, Step, StepToolCall, Trajectory
from whippletree.types import (
    Attempt,
    Call,
    CallPayload,
    CallTimes,
    Cause,
    CauseClass,
    ParsedMessage,
    RolloutSpec,
    Sample,
    Sampling,
    VerifierResult,
    VersionSpan,
)

SPEC = RolloutSpec(rollout_id="r", group_id="g", source="s", task_id="t", task_path="/t", harness="h", max_attempts=2)
Recorded = tuple[Call, CallPayload]


def recorded(
    index: int, delta: Sequence[int], sampled: Sequence[int], *, after: Recorded | None = None, **changes: Any
) -> Recorded:
    """A call as the gateway records it: `delta` is what follows the call `after`."""
    before = 0 if after is None else after[0].prompt_tokens + after[0].sampled_tokens
    call = Call(
        call_id=f"c{index}",
        rollout_id="r",
        attempt=1,
        index=index,
        digest=str(index),
        prompt_tokens=before + len(delta),
        sampled_tokens=len(sampled),
        finish_reason="stop",
        times=CallTimes(received=1.0),
        sampling=Sampling(),
        parent_call_id="" if after is None else after[0].call_id,
        prefix_break="first" if index == 0 else "",
        versions=(VersionSpan(start=0, policy_version=1),),
        delivered=True,
    )
    payload = CallPayload(
        prompt_delta=np.array(delta, np.int32),
        sampled_ids=np.array(sampled, np.int32),
        logprobs=np.full(len(sampled), -0.5, np.float32),
    )
    return msgspec.structs.replace(call, **changes), payload


def trace_of(*calls: Recorded) -> Trace:
    return build_trace([call for call, _ in calls], [payload for _, payload in calls])


def samples_of(*calls: Recorded) -> list[Sample]:
    return build_samples(trace_of(*calls), SPEC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with open_store(tmp_path) as opened:
        yield opened


def test_B01_a_turn_of_which_only_the_tail_was_captured_is_not_trained() -> None:
    """29 ids were sampled; the ids of the chunks that showed nothing are missing, the last five are there."""
    tail = recorded(0, [1, 2, 3], [20, 21, 22, 23, 24], sampled_tokens=29)
    on = recorded(1, [4], [5], after=(msgspec.structs.replace(tail[0], sampled_tokens=5), tail[1]))
    trace = trace_of(tail, on)
    assert trace.node("c0").excluded == "incomplete capture"
    (sample,) = build_samples(trace, SPEC)
    assert sample.token_ids[sample.trained].tolist() == [5]
    assert funnel(trace).excluded == {"incomplete capture": 1}


def test_B07_sampled_ids_without_prompt_ids_are_stored_scored_and_not_trained(store: SqliteStore) -> None:
    store.create_rollouts([SPEC]).result()
    (attempt,) = store.claim("w", 1).result()
    call, payload = recorded(0, [], [20, 21, 2], prompt_tokens=17)
    store.record_call(call, payload).result()
    store.finish(
        AttemptOutcome(attempt=msgspec.structs.replace(attempt, finished=2.0, result=VerifierResult(reward=1.0)))
    ).result()
    rollout = store.rollout("r")
    trace = load_trace(store, rollout)
    assert rollout.reward == 1.0
    assert trace.node("c0").excluded == "prompt ids missing"
    assert build_samples(trace, SPEC) == []


def test_B12_a_template_that_drops_thoughts_cuts_the_rollout_in_two_samples_of_one_reward() -> None:
    """U1 → <think>t1</think>a1; the next prompt has a1 without its thought, so it is no extension."""
    u1, thought, a1, u2 = [1, 2], [30, 31, 32], [40], [5]
    first = recorded(0, u1, [*thought, *a1])
    second = recorded(1, [*u1, *a1, *u2], [33, 41], prefix_break="template", base_call_id="c0")
    trace = trace_of(first, second)
    samples = build_samples(trace, SPEC)
    assert [sample.token_ids.tolist() for sample in samples] == [[1, 2, 30, 31, 32, 40], [1, 2, 40, 5, 33, 41]]
    assert [sample.token_ids[sample.trained].tolist() for sample in samples] == [[30, 31, 32, 40], [33, 41]]
    assert {sample.rollout_id for sample in samples} == {"r"}
    counts = [SampleTokens(sample_id=s.sample_id, rollout_id="r", trained_tokens=int(s.trained.sum())) for s in samples]
    whole = [SampleTokens(sample_id="all", rollout_id="r", trained_tokens=6)]
    split, one = loss_weights(counts).per_token, loss_weights(whole).per_token
    assert sum(split[c.sample_id] * c.trained_tokens for c in counts) == pytest.approx(one["all"] * 6)
    told = funnel(trace)  # what the report and `rollouts show` say: how many samples, and why
    assert (told.samples, told.breaks, told.trained_share) == (2, {"first": 1, "template": 1}, 1.0)


def test_B16_columns_of_unequal_length_are_an_error_that_names_rollout_and_turn() -> None:
    """A mask and logprobs of 12 over a completion of 11; nothing is cut to the shortest."""
    first = recorded(0, [1], [2])
    call, payload = recorded(1, [3], list(range(50, 61)), after=first)
    payload.logprobs = np.full(12, -0.5, np.float32)
    with pytest.raises(AlignmentError, match=r"number 1 of rollout r, attempt 1\): 11 sampled tokens have 12 logprobs"):
        trace_of(first, (call, payload))


def test_B17_before_a_break_everything_is_trained_and_a_low_share_is_said_plainly(store: SqliteStore) -> None:
    first = recorded(0, list(range(100, 140)), [1699, 25310, 367])
    second = recorded(1, [8], [9, 10], after=first)
    broken = recorded(2, [*range(100, 140), 59, 811, 446], [11], prefix_break="retokenisation", base_call_id="c1")
    assert [s.token_ids[s.trained].tolist() for s in samples_of(first, second, broken)] == [[1699, 25310, 367, 9, 10], [11]]

    specs = [msgspec.structs.replace(SPEC, rollout_id=name) for name in ("r", "other")]
    store.create_rollouts(specs).result()
    for attempt in store.claim("w", 2).result():
        name, delivered = attempt.rollout_id, attempt.rollout_id == "r"
        for call, payload in (first, second, broken):
            parent = call.parent_call_id and f"{name}-{call.parent_call_id}"
            changes = {
                "call_id": f"{name}-{call.call_id}",
                "rollout_id": name,
                "parent_call_id": parent,
                "delivered": delivered,
            }
            store.record_call(msgspec.structs.replace(call, **changes), payload).result()
            if delivered:
                store.mark_delivered(f"{name}-{call.call_id}").result()
        result = VerifierResult(reward=float(delivered))
        store.finish(AttemptOutcome(attempt=msgspec.structs.replace(attempt, finished=2.0, result=result))).result()
    batch = build_batch(
        store,
        [store.rollout("r"), store.rollout("other")],
        LearnerConfig(),
        policy_version=1,
        traces=TracesConfig(least_trained_share=0.8),
    )
    metrics = batch.metrics()
    assert metrics["prefix_breaks"] == {"retokenisation": 2}
    assert metrics["trained_share"] == pytest.approx(9 / 12)  # of the other rollout, only what a later prompt continues
    assert metrics["alarms"] == (
        "batch: only 75% of 12 sampled tokens are trained (the limit is 80%); left out: undelivered (2)",
    )


def test_B18_calls_without_one_trained_token_raise_an_alarm() -> None:
    """82 tokens were sampled and answered well, and the record holds none of them. (That the four dialects store the same turn
    is the gateway's to show.)"""
    call, payload = recorded(0, [1, 2], [], sampled_tokens=82, dialect="messages")
    payload.reply_json = msgspec.json.encode(ParsedMessage())
    trace = trace_of((call, payload))
    assert alarm(funnel(trace)).startswith("1 calls and not one trained token")
    assert "incomplete capture (1)" in alarm(funnel(trace))
    step = Step(
        step_id=1,
        source="agent",
        message="ok",
        tool_calls=[StepToolCall(tool_call_id="t1", function_name="ls", arguments={})],
        metrics=Metrics(prompt_tokens=17664, completion_tokens=82),
    )
    account = Account(segments=(Trajectory(schema_version=VERSION, agent=Agent(name="h", version="1"), steps=[step]),))
    found = {(finding.level, finding.code) for finding in reconcile(trace, account).findings}
    assert {("WARN", "text"), ("WARN", "tool_calls"), ("WARN", "prompt_tokens")} <= found
    empty = trace_of((msgspec.structs.replace(call, sampled_tokens=0), payload))
    assert ("FATAL", "not_captured") in {(f.level, f.code) for f in reconcile(empty, account).findings}


def test_B19_only_the_last_attempts_turns_are_trained_and_late_ones_stay_with_theirs(store: SqliteStore) -> None:
    store.create_rollouts([SPEC]).result()

    def write(attempt: Attempt, turns: int, start: int = 0) -> None:
        last: Recorded | None = None
        for index in range(turns):
            call, payload = recorded(index, [attempt.attempt, index], [60 + index], after=last)
            last = (msgspec.structs.replace(call, call_id=f"a{attempt.attempt}-{index}", attempt=attempt.attempt), payload)
            if index >= start:
                store.record_call(*last).result()
                store.mark_delivered(last[0].call_id).result()

    (first,) = store.claim("w", 1).result()
    write(first, 3)
    lost = Cause(cause=CauseClass.HOST_LOST, phase="agent", message="gone")
    store.finish(AttemptOutcome(attempt=msgspec.structs.replace(first, finished=2.0, cause=lost), requeue=True)).result()
    (second,) = store.claim("w", 1).result()
    write(second, 2)
    with pytest.raises(FencedError):  # stronger than filed under a1: a late turn of a sealed attempt is refused
        write(first, 4, start=3)
    write(second, 5, start=2)
    store.finish(
        AttemptOutcome(attempt=msgspec.structs.replace(second, finished=3.0, result=VerifierResult(reward=1.0)))
    ).result()
    rollout = store.rollout("r")
    trace = load_trace(store, rollout)
    assert [node.call_id for node in trace.nodes] == [f"a2-{index}" for index in range(5)]
    (sample,) = build_samples(trace, rollout.spec)
    assert sample.token_ids[sample.trained].tolist() == [60, 61, 62, 63, 64]
    assert len(sample.logprobs) == len(sample.token_ids)
    assert [call.call_id for call in store.calls("r", 1)] == [f"a1-{index}" for index in range(3)]


def test_B21_what_the_harness_wrote_itself_is_never_trained() -> None:
    """The history has a sampled turn and then "Stopped after 30 steps.", which no call sampled."""
    sampled = recorded(0, [1, 2], [20, 21])
    stopped = [70, 71, 72, 73]
    (sample,) = samples_of(sampled, recorded(1, [*stopped, 3], [22], after=sampled))
    assert sample.token_ids.tolist() == [1, 2, 20, 21, *stopped, 3, 22]
    assert sample.token_ids[sample.trained].tolist() == [20, 21, 22]
    assert samples_of(recorded(0, [1, 2, *stopped], [], versions=())) == []
    assert samples_of() == []


def test_B32_an_end_token_that_was_appended_is_not_trained() -> None:
    """The model was cut off after [20, 21]; the next prompt closes its turn with 2."""
    cut = recorded(0, [1], [20, 21], finish_reason="length")
    (sample,) = samples_of(cut, recorded(1, [2, 9], [30], after=cut))
    assert sample.token_ids.tolist() == [1, 20, 21, 2, 9, 30]
    assert sample.trained.tolist() == [False, True, True, False, False, True]
    (alone,) = samples_of(cut)
    assert (alone.token_ids.tolist(), alone.trained.tolist()) == ([1, 20, 21], [False, True, True])


def test_B33_the_generation_prompt_and_what_follows_the_end_token_are_not_trained() -> None:
    head, hello, end, newline = [7, 8, 9], 20, 2, 10  # <|im_start|>assistant\n, hello, <|im_end|>, \n
    turn = recorded(0, [1, *head], [hello, end])
    (sample,) = samples_of(turn, recorded(1, [newline, 5, *head], [21, end], after=turn))
    assert sample.token_ids[sample.trained].tolist() == [hello, end, 21, end]
    assert sample.trained.tolist()[:7] == [False, False, False, False, True, True, False]
