"""Recorded attempts, made up call by call as a gateway would record them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st

from whippletree.traces import Trace, build_trace
from whippletree.types import (
    Call,
    CallPayload,
    CallTimes,
    Message,
    ParsedMessage,
    RolloutSpec,
    Sampling,
    ToolCall,
    VersionSpan,
)

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

    def said(self, content: str = "", *, heard: tuple[Message, ...] = (), calls: tuple[ToolCall, ...] = ()) -> None:
        """Put words to the last call: the messages that are new in its request, and its reply."""
        payload = self.payloads[-1]
        assert payload is not None
        payload.messages_json = msgspec.json.encode(heard)
        payload.reply_json = msgspec.json.encode(ParsedMessage(content=content, tool_calls=calls))

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
def record() -> type[Recorder]:
    """Makes an empty record, as often as it is called."""
    return Recorder


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


@pytest.fixture
def story() -> Recorder:
    """A run of a harness: a title (side), a conversation with a tool, a retry, a cut-off call, a sub-agent, a compaction."""
    made = Recorder()
    task = (Message(role="system", content="be brief"), Message(role="user", content="fix it"))
    listing = ToolCall(id="t1", name="bash", arguments='{"command": "ls"}')
    spawn = ToolCall(id="t2", name="task", arguments='{"of": "look"}')
    made.call([90, 91], [92], role="side", prefix_break="first")
    made.said("Fixing it", heard=(Message(role="user", content="title?"),))
    made.call([1, 2], [3, 4, 5], prefix_break="new_thread")
    made.said("look", heard=task, calls=(listing,))
    made.call([1, 2, 3, 4, 5, 6], [7], parent=1, base_call_id="c1")
    made.said("never seen", heard=(Message(role="tool", content="a.txt", tool_call_id="t1"),))
    made.call([1, 2, 3, 4, 5, 6], [8, 9], parent=1, base_call_id="c1")
    made.said("ask", heard=(Message(role="tool", content="a.txt", tool_call_id="t1"),), calls=(spawn,))
    made.call([50], [51], role="subagent", origin_call_id="c3", prefix_break="new_thread")
    made.said("nothing there", heard=(Message(role="user", content="look"),))
    made.call([1, 2, 3, 4, 5, 6, 8, 9, 10], [11], parent=3, base_call_id="c3", delivered=False, finish_reason="abort")
    made.said("cut", heard=(Message(role="tool", content="nothing there", tool_call_id="t2"),))
    made.call([1, 2, 3, 4, 5, 6, 8, 9, 10, 12], [13, 14], parent=3, base_call_id="c3", role="side")
    made.said("summary", heard=(Message(role="tool", content="nothing there", tool_call_id="t2"),))
    made.call([1, 14], [15], prefix_break="compaction", origin_call_id="c6")
    made.said("done", heard=(*task, Message(role="user", content="summary")))
    return made
