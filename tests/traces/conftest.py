"""Recorded attempts, made up call by call as a gateway would record them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st

from whippletree.traces import Trace, build_trace
from whippletree.types import Call, CallPayload, CallTimes, RolloutSpec, Sampling, VersionSpan

SPEC = RolloutSpec(
    rollout_id="r", group_id="g", source="s", task_id="t", task_path="/t", harness="h", sampling=Sampling(temperature=1.0)
)


class Recorder:
    """Collects calls and payloads. `parent` is the recorded parent; its prompt is then stored as a delta."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.payloads: list[CallPayload | None] = []
        self.prompts: list[list[int]] = []
        self.sampled: list[list[int]] = []

    def call(self, prompt: list[int], sampled: list[int], *, parent: int | None = None, **changes: Any) -> Call:
        """Record one call that was fed `prompt` and sampled `sampled`."""
        number = len(self.calls)
        whole = [] if parent is None else self.prompts[parent] + self.sampled[parent]
        assert prompt[: len(whole)] == whole
        logprobs = [-0.5 - 0.001 * number - 0.01 * place for place in range(len(sampled))]
        call = Call(
            call_id=f"c{number}",
            rollout_id="r",
            attempt=1,
            index=number,
            digest=str(prompt),
            prompt_tokens=len(prompt),
            sampled_tokens=len(sampled),
            finish_reason="stop",
            times=CallTimes(received=float(number), finished=number + 0.5),
            sampling=Sampling(temperature=1.0),
            parent_call_id="" if parent is None else f"c{parent}",
            versions=(VersionSpan(start=0, policy_version=number),),
            delivered=True,
            prefix_break="first" if number == 0 else "",
        )
        self.calls.append(msgspec.structs.replace(call, **changes))
        self.prompts.append(prompt)
        self.sampled.append(sampled)
        self.payloads.append(
            CallPayload(
                prompt_delta=np.array(prompt[len(whole) :], np.int32),
                sampled_ids=np.array(sampled, np.int32),
                logprobs=np.array(logprobs, np.float32),
            )
        )
        return self.calls[-1]

    def failed(self) -> Call:
        """Record one call that came to nothing: no payload."""
        call = self.call([], [], finish_reason="error", delivered=False, versions=(), error="engine died")
        self.payloads[-1] = None
        return call

    def trace(self) -> Trace:
        """The tree of what was recorded."""
        return build_trace(self.calls, self.payloads)


@pytest.fixture
def recorder() -> Recorder:
    """An empty record."""
    return Recorder()


@pytest.fixture(scope="session")
def spec() -> RolloutSpec:
    """The rollout that all calls belong to."""
    return SPEC


@pytest.fixture(scope="session")
def grow() -> Callable[[st.DataObject], Recorder]:
    """grow(data) records a random attempt: calls that go on, retry, branch, begin anew, are cut off, undelivered or fail."""
    ids = st.lists(st.integers(0, 2), min_size=1, max_size=3)

    def build(data: st.DataObject) -> Recorder:
        made = Recorder()
        for number in range(data.draw(st.integers(0, 9))):
            kind = data.draw(st.sampled_from(["on", "on", "on", "retry", "root", "failed"])) if number else "root"
            of = data.draw(st.integers(0, number - 1)) if number else 0
            sampled = data.draw(st.sampled_from([[], [0], [1], [2], [0, 1], [1, 1, 2]]))
            changes = {"delivered": data.draw(st.sampled_from([True, True, False]))}
            if kind == "failed":
                made.failed()
            elif kind == "on" and made.payloads[of] is not None:
                whole = made.prompts[of] + made.sampled[of]
                parent = data.draw(st.sampled_from([None, of]))
                made.call(whole + data.draw(ids), sampled, parent=parent, **changes)
            elif kind == "retry" and made.payloads[of] is not None:
                made.call(made.prompts[of], sampled, **changes)
            else:
                made.call(data.draw(ids), sampled, **changes)
        return made

    return build
