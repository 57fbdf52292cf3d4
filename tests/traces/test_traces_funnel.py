"""Counting calls and tokens on their way to the learner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.traces import Funnel, add_funnels, alarm, build_samples, funnel
from whippletree.types import RolloutSpec


@given(data=st.data())
def test_stages_only_lose_calls_and_every_loss_has_a_reason(
    grow: Callable[..., Any], spec: RolloutSpec, data: st.DataObject
) -> None:
    trace = grow(data).trace()
    counts = funnel(trace)
    assert counts.received >= counts.captured >= counts.sampled >= counts.delivered >= counts.trained
    assert counts.received == counts.trained + sum(counts.excluded.values())
    assert counts.captured == counts.linked + counts.roots
    samples = build_samples(trace, spec)
    assert counts.samples == len(samples)
    assert counts.trained_tokens == sum(int(sample.trained.sum()) for sample in samples)
    assert counts.sample_tokens == sum(len(sample.token_ids) for sample in samples)
    assert (counts.first_zero == "") == (counts.trained > 0)


def test_breaks_and_exclusions_are_counted_by_cause(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([1, 2, 3], [4], parent=0)
    recorder.call([7], [8], prefix_break="compaction")
    recorder.call([9], [8], prefix_break="compaction", delivered=False)
    counts = funnel(recorder.trace())
    assert counts == Funnel(
        received=4,
        captured=4,
        sampled=4,
        delivered=3,
        trained=3,
        linked=1,
        roots=3,
        samples=2,
        prompt_tokens=6,
        sampled_tokens=4,
        trained_tokens=3,
        sample_tokens=6,
        roles={"main": 4},
        breaks={"first": 1, "compaction": 2},
        excluded={"undelivered": 1},
    )


def nothing(recorder: Any) -> None:
    """The harness made no call."""


def only_failures(recorder: Any) -> None:
    recorder.failed()


def silence(recorder: Any) -> None:
    recorder.call([1], [], versions=())


def lost_reply(recorder: Any) -> None:
    recorder.call([1], [2], delivered=False)


def no_logprobs(recorder: Any) -> None:
    recorder.call([1], [2], logprob_source="none")


@pytest.mark.parametrize(
    ("happened", "words"),
    [
        (nothing, "received = 0: no model request reached the gateway"),
        (only_failures, "captured = 0: no call left ids"),
        (silence, "sampled = 0: the engine sampled nothing"),
        (lost_reply, "delivered = 0: no reply reached the harness whole"),
        (no_logprobs, "trained = 0: no call can be trained; left out: no logprobs (1)"),
    ],
)
def test_the_first_zero_is_explained(recorder: Any, happened: Callable[[Any], None], words: str) -> None:
    happened(recorder)
    assert funnel(recorder.trace()).first_zero.startswith(words)


def test_the_sum_of_funnels_is_explained_anew(recorder: Any) -> None:
    empty = funnel(recorder.trace())
    recorder.call([1], [2])
    one = funnel(recorder.trace())
    total = add_funnels([empty, one, one])
    assert (total.received, total.trained_tokens, total.breaks, total.first_zero) == (2, 2, {"first": 2}, "")
    assert add_funnels([empty, empty]).first_zero == empty.first_zero


def test_calls_by_role_and_the_trained_share_are_counted(story: Any) -> None:
    counts = funnel(story.trace())
    assert counts.roles == {"side": 1, "main": 5, "subagent": 1, "compaction": 1}
    assert counts.excluded == {"role side is not trained": 1, "superseded": 1, "undelivered": 1}
    assert (counts.trained_tokens, counts.sampled_tokens) == (9, 12)
    assert counts.trained_share == pytest.approx(0.75)
    assert counts.reasons == "role side is not trained (1), superseded (1), undelivered (1)"
    assert Funnel().trained_share is None


def test_calls_without_one_trained_token_are_an_alarm(recorder: Any) -> None:
    assert alarm(funnel(recorder.trace())) == ""
    recorder.call([1], [2], grade="text")
    recorder.call([5], [6], role="side")
    told = alarm(funnel(recorder.trace()))
    assert told.startswith("2 calls and not one trained token; trained = 0: no call can be trained; left out: ")
    assert "no token ids (1), role side is not trained (1)" in told


def test_a_trained_share_below_the_limit_is_an_alarm(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([5], [6, 7, 8], delivered=False)
    counts = funnel(recorder.trace())
    assert alarm(counts, 0.25) == ""
    assert alarm(counts, 0.3) == ("only 25% of 4 sampled tokens are trained (the limit is 30%); left out: undelivered (1)")
    assert alarm(counts) == ""
