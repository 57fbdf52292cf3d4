"""What must hold whatever harnesses, engines and networks do: random interleavings over a real store and scripted engines.

1. sampled ids, logprobs and counts of every record agree;
2. what is trained is what was sampled and delivered, each token once, under the prompt that the engine was fed;
3. conversations of one rollout do not break each other's prefixes.
"""

import asyncio
import contextlib
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from direct import direct
from gateway_world import user
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whippletree.engines.scripted import ScriptedEngine
from whippletree.errors import EngineUnavailable, WhippletreeError
from whippletree.traces import build_samples
from whippletree.types import Sampling, TokenChunk, WeightUpdate

CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
ODD = ("retry", "resend", "leave", "compact", "drop reply", "edit", "title", "reset", "stutter", "hold", "weights")
STEPS = ("ask", "ask", "ask", "ask", *ODD)


class Fed(ScriptedEngine):
    """Remembers what it was fed; sends nonsense once, or breaks once, when it is told to."""

    stutter = reset = False

    async def generate(self, request):
        self.fed.append(list(request.prompt_ids))
        count = 0
        async for chunk in super().generate(request):
            count += 1
            if self.reset and count == 3:
                self.reset = False
                raise EngineUnavailable("broken")
            if self.stutter and chunk.token_ids:
                self.stutter = False
                yield TokenChunk(token_ids=chunk.token_ids, logprobs=[], policy_version=0)
                return
            yield chunk


class Harness:
    """One conversation of a harness that does odd things."""

    def __init__(self, direct, name, engine):
        self.direct, self.engine = direct, engine
        self.messages = [{"role": "system", "content": f"you are {name}"}, user(f"{name}: go")]
        self.last = list(self.messages)

    async def step(self, what, number):
        if what in ("reset", "stutter"):
            setattr(self.engine, what, True)
        elif what == "weights":
            await self.engine.update_weights(WeightUpdate(directory=f"/{number}", policy_version=number + 1))
        elif what == "hold":
            await self.direct.gateway.hold(0.0, abort=True)
            self.direct.gateway.release()
        elif what == "compact":
            await self.compact(number)
        elif what == "edit":
            self.messages[-1] = {**self.messages[-1], "content": f"edited {number}"}
        elif what == "title":
            await self.ask([user("name this conversation")], tools=[])
        elif what == "leave":
            await self.leave()
        elif what == "resend":
            await self.ask(self.last)
        else:
            await self.turn(number, retry=what == "retry", lost=what == "drop reply")

    async def compact(self, number):
        """Ask for a summary, and go on from that alone."""
        reply = await self.ask([*self.messages, user(f"sum up {number}")])
        text = reply.message.content if reply is not None else ""
        self.messages = [self.messages[0], user(f"Summary {number}:\n{text}\nGo on.")]

    async def leave(self):
        gone = asyncio.create_task(self.ask(list(self.messages)))
        for _ in range(30):
            await asyncio.sleep(0)
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone

    async def turn(self, number, *, retry, lost):
        self.last = list(self.messages)
        reply = await self.ask(self.last, retry=retry)
        if reply is None or lost:
            self.messages.append(user(f"that did not work {number}"))
            return
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.message.tool_calls
        ]
        self.messages.append({"role": "assistant", "content": reply.message.content or None, "tool_calls": calls or None})
        if calls:
            self.messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": f"out {number}"})
        else:
            self.messages.append(user(f"on {number}"))

    async def ask(self, messages, **fields):
        try:
            return await self.direct.ask(list(messages), **fields)
        except WhippletreeError:
            return None


def answers(prompt):
    return f"look {CALL}" if len(prompt) % 3 else f"so far {len(prompt)} characters were read, and nothing was found"


async def run(renderer, plans):
    def script(prompt):
        return renderer.codec.encode(answers(renderer.decode(list(prompt))) + "<|im_end|>")

    engine = Fed(script, vocabulary=420, context=4096)
    engine.fed = []
    with tempfile.TemporaryDirectory() as directory:
        sampling = Sampling(max_tokens=60, seed=1)
        async with direct(Path(directory), renderer, [engine], sampling=sampling) as gateway:
            harnesses = [Harness(gateway, f"agent {place}", engine) for place in range(len(plans))]

            async def live(harness, plan):
                for number, what in enumerate(plan):
                    await harness.step(what, number)
                    await asyncio.sleep(0)

            await asyncio.gather(*map(live, harnesses, plans))
            await gateway.settled()
            check(gateway, engine)
            return gateway.calls()


def check(gateway, engine):
    calls = gateway.calls()
    trace = gateway.trace()
    assert [call.index for call in calls] == list(range(len(calls)))
    for call in calls:  # 1
        payload = gateway.store.payload(call)
        assert len(payload.sampled_ids) == len(payload.logprobs) == call.sampled_tokens
        assert np.isfinite(payload.logprobs).all()
    fed = {tuple(prompt) for prompt in engine.fed}
    for node in trace.nodes:  # 2: under the prompt that was fed
        assert tuple(node.prompt_ids.tolist()) in fed
    samples = build_samples(trace, gateway.store.rollout("r0").spec)
    trained = sum(int(sample.trained.sum()) for sample in samples)
    assert trained == sum(len(node.sampled_ids) for node in trace.nodes if node.trainable)
    for node in trace.nodes:
        if node.trainable:
            assert node.call.delivered or node.children
    for sample in samples:
        for call_id in sample.call_ids:
            node = trace.node(call_id)
            end = len(node.prompt_ids) + len(node.sampled_ids)
            assert sample.token_ids[:end].tolist() == node.full_ids.tolist()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans=st.lists(st.lists(st.sampled_from(STEPS), min_size=1, max_size=7), min_size=1, max_size=3))
def test_records_and_samples_hold_together_whatever_happens(renderer, plans):
    asyncio.run(run(renderer, plans))


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=5))
def test_interleaved_conversations_do_not_break_each_other(renderer, lengths):
    calls = asyncio.run(run(renderer, [["ask"] * length for length in lengths]))
    assert len(calls) == sum(lengths)
    starts = [call for call in calls if call.prefix_break]
    assert len(starts) == len(lengths)
    assert {call.prefix_break for call in starts} <= {"first", "new_thread"}
    by_id = {call.call_id: call for call in calls}
    for call in calls:
        if call.parent_call_id:
            assert by_id[call.parent_call_id].role == call.role


def test_a_long_random_run(renderer):
    rng = random.Random(5)
    calls = asyncio.run(run(renderer, [[rng.choice(STEPS) for _ in range(40)] for _ in range(4)]))
    assert len(calls) > 20
    assert {call.prefix_break for call in calls} >= {"", "first", "new_thread"}
    assert {call.finish_reason for call in calls} >= {"stop", "tool_calls"}


@pytest.mark.parametrize("what", ODD)
def test_each_kind_of_step_alone(renderer, what):
    asyncio.run(run(renderer, [["ask", what, "ask", what, "ask"]]))
