"""What the control routes are asked and answer."""

import msgspec
import pytest

from whippletree.gateway import wire
from whippletree.gateway.replicas import ReplicaHealth
from whippletree.traces import RolloutView, SampleView
from whippletree.types import CauseClass, Rollout, RolloutSpec, Sampling

SPEC = RolloutSpec(rollout_id="r", group_id="g", source="s", task_id="t", task_path="/t", harness="h")
VIEW = RolloutView(
    rollout=Rollout(spec=SPEC, state="succeeded", created=1.0, updated=2.0, attempt=1, reward=1.0),
    samples=(SampleView(sample_id="r.0", call_ids=("c",), token_ids=[1], trained=[True], logprobs=[-0.5], versions=[3]),),
    breaks={"first": ("c",)},
)
EXAMPLES = [
    wire.HoldReport(held=True, in_flight=0, waiting=12),
    wire.SealReport(sealed=True, calls=5, delivered=5),
    wire.GatewayStatus(
        held=False,
        in_flight=1,
        waiting=2,
        sessions=3,
        calls=4,
        delivered=5,
        aborted=6,
        replayed=7,
        resumed=8,
        prefix_breaks={"": 2},
        engines=(ReplicaHealth(name="one", answering=True, in_flight=1),),
        refused_keys=9,
    ),
    wire.Health(),
    wire.ReadyFile(port=1, pid=2, workers=(3, 4)),
    wire.SessionRequest(session_id="x", labels={"a": "b"}, sampling=Sampling(max_tokens=9)),
    wire.SessionOpened(
        session_id="x",
        attempt=1,
        api_key="k",
        base_url="a",
        anthropic_base_url="b",
        gemini_base_url="c",
        path_base_url="d",
    ),
    wire.SessionEnd(error="it fell over", cause=CauseClass.TASK),
    wire.SessionState(session_id="x", attempt=1, state="succeeded", reward=0.5, calls=2, delivered=1),
    wire.RolloutReport(attempt=1, settled=True, sealed=False, view=VIEW, problem="none"),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_every_struct_survives_both_forms(example):
    assert msgspec.json.decode(msgspec.json.encode(example), type=type(example)) == example
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(example), type=type(example)) == example


def test_there_is_an_example_of_every_struct():
    structs = {name for name, value in vars(wire).items() if isinstance(value, type) and value.__module__ == wire.__name__}
    assert structs == {type(example).__name__ for example in EXAMPLES}
