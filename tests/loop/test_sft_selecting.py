"""whippletree/loop/sft/selecting.py: which rollouts and calls are learned from, over real stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from sft_parts import SOLVED, Recorder, recording

from whippletree.loop.sft.config import ExportConfig
from whippletree.loop.sft.examples import to_message, to_tool
from whippletree.loop.sft.selecting import Reader, Tally
from whippletree.types import Call


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with recording(tmp_path / "run") as (made, _):
        yield made


def read(recorder: Recorder, **config: object) -> tuple[list, Tally]:
    settings, tally = ExportConfig(**config), Tally()
    reader = Reader(recorder.store, "demo", settings, tally)
    found = list(reader.chat() if settings.format == "chat" else reader.tokens())
    assert tally.kept_rollouts + sum(tally.dropped_rollouts.values()) == tally.rollouts
    assert tally.kept_calls + sum(tally.dropped_calls.values()) == tally.calls
    return found, tally


def changed(**fields: object):
    return lambda call: msgspec.structs.replace(call, **fields)


def second(**fields: object):
    """Changes the second call alone."""
    return lambda call: msgspec.structs.replace(call, **fields) if call.index == 1 else call


def test_an_example_is_what_the_call_was_made_with_and_its_reply(recorder: Recorder):
    recorder.rollout("a", ["cat amber", "cat birch", "submit 17"], text="I look.")
    found, _ = read(recorder)
    assert [len(example.messages) for example in found] == [3, 5, 7]
    last = [to_message(message) for message in found[-1].messages]
    assert [message.role for message in last] == ["system", "user", *["assistant", "tool"] * 2, "assistant"]
    assert [message.content for message in last if message.role == "tool"] == ["saw cat amber", "saw cat birch"]
    assert [call.arguments for message in last for call in message.tool_calls] == [
        '{"command":"cat amber"}',
        '{"command":"cat birch"}',
        '{"command":"submit 17"}',
    ]
    assert last[-1].content == "I look." and found[-1].target == 6
    assert [to_tool(tool).name for tool in found[-1].tools] == ["bash"]
    assert (found[0].reward, found[0].tokens, found[0].harness, found[0].rollout_id, found[0].run) == (1.0, 6, "h", "a", "demo")


def test_rollouts_are_left_out_for_one_reason_each(recorder: Recorder):
    recorder.rollout("good", SOLVED)
    recorder.rollout("half", SOLVED, reward=0.5)
    recorder.rollout("broken", [], reward=None)
    recorder.rollout("held", SOLVED, purpose="eval")
    recorder.rollout("other", SOLVED, harness="other")
    recorder.unfinished("runs")
    found, tally = read(recorder, purpose="train", harnesses=("h", "mini-swe-agent"))
    assert {example.rollout_id for example in found} == {"good"}
    assert tally.dropped_rollouts == {
        "reward below min_reward": 1,
        "no reward: sandbox": 1,
        "its purpose is eval": 1,
        "another harness": 1,
        "not finished": 1,
    }
    found, _ = read(recorder, min_reward=0.5)
    assert {example.rollout_id for example in found} == {"good", "half", "held", "other"}
    assert read(recorder, sources=("elsewhere",))[0] == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"finish_reason": "length"}, "cut off at its token limit"),
        ({"malformed": "no JSON"}, "malformed tool call"),
        ({"finish_reason": "error", "error": "engine"}, "error"),
        ({"role": "side"}, "role side is not wanted"),
    ],
)
@pytest.mark.parametrize("form", ["chat", "tokens"])
def test_a_call_that_teaches_nothing_is_left_out_and_the_others_stay(recorder: Recorder, fields, reason, form):
    recorder.rollout("a", SOLVED, change=second(**fields))
    found, tally = read(recorder, format=form)
    assert tally.dropped_calls == {reason: 1} and tally.kept_calls == 1
    (example,) = found
    if form == "chat":
        assert [call.arguments for call in to_message(example.messages[-1]).tool_calls] == ['{"command":"cat amber"}']
    else:
        assert int(example.trained.sum()) == 6 == example.origin.tokens


def test_what_was_not_delivered_is_left_out(recorder: Recorder):
    recorder.rollout("a", SOLVED[:1], delivered=False)
    assert read(recorder)[1].dropped_calls == {"undelivered": 1}


def test_replies_of_a_chat_api_are_learned_as_text_alone(recorder: Recorder):
    def api(call: Call) -> Call:
        return msgspec.structs.replace(call, grade="text", parent_call_id="", logprob_source="none", versions=())

    recorder.rollout("a", SOLVED, change=api)
    assert [len(example.messages) for example in read(recorder)[0]] == [3, 5]
    found, tally = read(recorder, format="tokens")
    assert found == [] and tally.dropped_calls == {"no token ids": 2}


def test_what_training_by_reward_asks_for_is_not_asked_for(recorder: Recorder):
    recorder.rollout("a", SOLVED, change=changed(constrained=True, logprob_source="none"))
    found, tally = read(recorder, format="tokens")
    assert not tally.dropped_calls and int(found[0].trained.sum()) == 12


def test_tokens_are_trained_where_kept_calls_sampled_them(recorder: Recorder):
    recorder.rollout("a", ["cat amber", "cat birch", "submit 17"])
    (example,), _ = read(recorder, format="tokens")
    places = np.flatnonzero(example.trained)
    assert places.tolist() == [*range(12, 18), *range(26, 32), *range(40, 46)]
    assert example.input_ids[places].tolist() == [*range(20, 26)] * 3
    assert example.sample_id == "a.2"


def test_released_payloads_are_named_not_fatal(recorder: Recorder):
    recorder.rollout("a", SOLVED)
    recorder.rollout("b", SOLVED)
    recorder.store.release(["a"])
    found, tally = read(recorder)
    assert {example.rollout_id for example in found} == {"b"}
    assert tally.dropped_rollouts == {"its calls cannot be read (released, or damaged)": 1}


def test_a_grids_rollouts_have_the_names_of_the_grid(recorder: Recorder):
    labels = {"grid_harness": "mini-text", "grid_source": "trail", "grid_sample": "0", "grid_try": "0"}
    recorder.rollout("a", SOLVED, labels=labels, source="trail.mini-text", harness="mini-swe-agent")
    found, _ = read(recorder, harnesses=("mini-text",), sources=("trail",))
    assert {(example.source, example.harness) for example in found} == {("trail", "mini-text")}
