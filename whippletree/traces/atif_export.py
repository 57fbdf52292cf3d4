"""A trace as an ATIF v1.8 document, for tools that read Harbor's format.

    main conversation ──► steps: what is new in each request, then the turn with its tool calls, counts, ids and logprobs
    sub-agents        ──► subagent_trajectories of the conversation that started them, referred to by the step that did

Invariants (tests/traces/test_traces_atif_export.py):
- each call whose reply reached the harness is one agent step, in order; retries, cut-off and side calls are none;
- assistant turns that no call sampled are steps of no model call;
- step ids count from 1, and an observation names only tool calls of its own step.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from whippletree.traces.atif import (
    VERSION,
    Agent,
    FinalMetrics,
    Metrics,
    Observation,
    ObservationResult,
    Source,
    Step,
    StepToolCall,
    SubagentRef,
    Trajectory,
)
from whippletree.traces.payloads import read_messages, read_reply
from whippletree.traces.reconcile import NOTHING_CAME
from whippletree.traces.tree import Node, Trace
from whippletree.types import Message, Rollout, ToolCall

SOURCES: dict[str, Source] = {"system": "system", "user": "user", "assistant": "agent"}


def export_atif(trace: Trace, rollout: Rollout, *, version: str = "unknown", tokens: bool = True) -> Trajectory:
    """The trace of a rollout as one document. `version` is the harness's; without `tokens`, ids and logprobs are left out.

    Raises AlignmentError when a recorded message cannot be read.
    """
    told = [node for node in trace.nodes if node.role != "side" and node.excluded not in NOTHING_CAME]
    conversations: dict[str, list[Node]] = {}
    for node in told:
        is_main = node.role == "main" or (node.role == "compaction" and trace.node(node.conversation).role == "main")
        conversations.setdefault("" if is_main else node.conversation, []).append(node)
    homes = {node.call_id: name for name, nodes in conversations.items() for node in nodes}
    started: dict[str, list[str]] = {}
    for name in conversations:
        if name:
            origin = trace.node(name).call.origin_call_id
            home = homes.get(origin, "")
            earlier = home and trace.node(home).call.index < trace.node(name).call.index
            started.setdefault(home if earlier else "", []).append(name)
    agent = Agent(name=rollout.spec.harness, version=version)
    writer = _Writer(trace, agent, conversations, started, tokens)
    whole = writer.trajectory("")
    return msgspec.structs.replace(
        whole, session_id=rollout.spec.rollout_id, extra={"attempt": rollout.attempt, "reward": rollout.reward}
    )


class _Writer:
    """Writes the conversations of one trace, each with those that it started."""

    def __init__(
        self,
        trace: Trace,
        agent: Agent,
        conversations: dict[str, list[Node]],
        started: dict[str, list[str]],
        tokens: bool,
    ) -> None:
        self.trace = trace
        self.agent = agent
        self.conversations = conversations
        self.started = started
        self.tokens = tokens

    def trajectory(self, name: str) -> Trajectory:
        nodes = self.conversations.get(name, [])
        steps: list[Step] = []
        for node in nodes:
            again = node is not nodes[0] and not node.call.base_call_id
            for message in read_messages(node.call_id, node.messages_json):
                _add_message(steps, message, node, again)
            steps.append(self._turn(node))
        below = self.started.get(name, [])
        for head in below:
            _refer(steps, self.trace.node(head).call.origin_call_id, head)
        numbered = [msgspec.structs.replace(step, step_id=number) for number, step in enumerate(steps, start=1)]
        return Trajectory(
            schema_version=VERSION,
            agent=self.agent,
            steps=numbered,
            trajectory_id=name or None,
            final_metrics=_sums(nodes, len(numbered)),
            subagent_trajectories=[self.trajectory(head) for head in below] or None,
        )

    def _turn(self, node: Node) -> Step:
        call, message = node.call, read_reply(node.call_id, node.reply_json)
        with_ids = self.tokens and node.prompt is not None
        usable = len(node.logprobs) > 0 and bool(np.isfinite(node.logprobs).all())
        return Step(
            step_id=0,
            source="agent",
            message=message.content,
            timestamp=_time(call.times.finished or call.times.received),
            reasoning_content=message.reasoning or None,
            tool_calls=[_tool_call(one) for one in message.tool_calls] or None,
            metrics=Metrics(
                prompt_tokens=call.prompt_tokens,
                completion_tokens=call.sampled_tokens,
                cached_tokens=call.cached_tokens,
                prompt_token_ids=node.prompt_ids.tolist() if with_ids else None,
                completion_token_ids=node.sampled_ids.tolist() if with_ids else None,
                logprobs=node.logprobs.tolist() if with_ids and usable else None,
            ),
            llm_call_count=1,
            extra={
                "call_id": call.call_id,
                "role": node.role,
                "finish_reason": call.finish_reason,
                "policy_versions": [call.version_start, call.version_end],
                "not_trained": node.excluded,
            },
        )


def _add_message(steps: list[Step], message: Message, node: Node, again: bool) -> None:
    """Add a message of a request; a tool's result goes to the step that called it. `again`: history that was sent anew."""
    if message.role != "tool":
        own = message.role == "assistant"
        steps.append(
            Step(
                step_id=0,
                source=SOURCES[message.role],
                message=message.content,
                timestamp=_time(node.call.times.received),
                tool_calls=[_tool_call(one) for one in message.tool_calls] or None if own else None,
                llm_call_count=0 if own else None,
                is_copied_context=again or None,
            )
        )
        return
    if not steps or (steps[-1].source != "agent"):
        steps.append(Step(step_id=0, source="system", message="", is_copied_context=again or None))
    known = {call.tool_call_id for call in steps[-1].tool_calls or []}
    _observe(
        steps,
        len(steps) - 1,
        ObservationResult(
            source_call_id=message.tool_call_id if message.tool_call_id in known else None,
            content=message.content,
            extra={"is_error": True} if message.is_error else None,
        ),
    )


def _refer(steps: list[Step], origin: str, head: str) -> None:
    """Name a sub-agent's trajectory at the step of the call that started it, where that is known."""
    place = next((place for place, step in enumerate(steps) if (step.extra or {}).get("call_id") == origin), None)
    if place is not None:
        _observe(steps, place, ObservationResult(subagent_trajectory_ref=[SubagentRef(trajectory_id=head)]))


def _observe(steps: list[Step], place: int, result: ObservationResult) -> None:
    before = steps[place].observation
    results = [*before.results, result] if before is not None else [result]
    steps[place] = msgspec.structs.replace(steps[place], observation=Observation(results=results))


def _tool_call(call: ToolCall) -> StepToolCall:
    """The format wants an object of arguments; text that is none is kept beside it."""
    try:
        arguments: dict[str, Any] = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return StepToolCall(tool_call_id=call.id, function_name=call.name, arguments={}, extra={"arguments": call.arguments})
    return StepToolCall(tool_call_id=call.id, function_name=call.name, arguments=arguments)


def _sums(nodes: Sequence[Node], steps: int) -> FinalMetrics:
    return FinalMetrics(
        total_prompt_tokens=sum(node.call.prompt_tokens for node in nodes),
        total_completion_tokens=sum(node.call.sampled_tokens for node in nodes),
        total_cached_tokens=sum(node.call.cached_tokens for node in nodes),
        total_steps=steps,
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
