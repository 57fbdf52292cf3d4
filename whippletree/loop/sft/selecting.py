"""Which rollouts and calls of a record are worth learning from, and why the others are not.

    rollouts ─► reward at least the threshold ─► calls: delivered, whole, of a wanted role ─┬─► chat examples, one per call
                                                                                            └─► token examples, one per path

What reinforcement learning asks for besides (logprobs, policy versions) is not asked for here: a reply of any engine, a chat
API's too, can be learned as text.
Invariants (tests/loop/test_sft_selecting.py):
- every rollout and every call of a kept rollout is kept or counted under one reason;
- a chat example's messages are those that the call was made with, and its last one is the reply;
- a token is trained only where a kept call sampled it, once per rollout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from whippletree.errors import AlignmentError, StoreError
from whippletree.gateway.history import offered_tools
from whippletree.gateway.lineage import reply_message
from whippletree.loop.grid.cells import HARNESS, SOURCE
from whippletree.loop.sft.config import ExportConfig
from whippletree.loop.sft.examples import ChatExample, Origin, TokenExample, chat_example
from whippletree.protocols import Store
from whippletree.traces import Node, Trace, TracesConfig, build_samples, build_trace, call_numbers
from whippletree.types import CallPayload, Message, ParsedMessage, Rollout

WITHOUT_IDS = ("no token ids", "prompt ids missing")
IN_THE_WAY = ("no payload", "incomplete capture", "error", "nothing sampled", "undelivered", "superseded")


@dataclass
class Tally:
    """What was looked at, and why it was left out."""

    rollouts: int = 0
    calls: int = 0
    kept_rollouts: int = 0
    kept_calls: int = 0
    dropped_rollouts: Counter[str] = field(default_factory=Counter)
    dropped_calls: Counter[str] = field(default_factory=Counter)


def source_and_harness(rollout: Rollout) -> tuple[str, str]:
    """Their names; in a grid, those of the grid."""
    labels = rollout.spec.labels
    return labels.get(SOURCE, rollout.spec.source), labels.get(HARNESS, rollout.spec.harness)


def rollout_reason(rollout: Rollout, config: ExportConfig) -> str:
    """Why a rollout is left out; "" where it is not."""
    source, harness = source_and_harness(rollout)
    if config.purpose not in ("all", rollout.spec.purpose):
        return f"its purpose is {rollout.spec.purpose}"
    if config.sources and source not in config.sources:
        return "another source"
    if config.harnesses and harness not in config.harnesses:
        return "another harness"
    if not rollout.terminal:
        return "not finished"
    if rollout.reward is None:
        return f"no reward: {rollout.cause.cause if rollout.cause else 'unknown'}"
    return "" if rollout.reward >= config.min_reward else "reward below min_reward"


def call_reason(node: Node, config: ExportConfig) -> str:
    """Why a call is left out; "" where it is not."""
    call = node.call
    if node.excluded in IN_THE_WAY:
        return node.excluded
    if node.excluded in WITHOUT_IDS and config.format == "tokens":
        return node.excluded
    checks = (
        (call.finish_reason in ("error", "abort"), "error"),
        (call.sampled_tokens == 0, "nothing sampled"),
        (not node.delivered, "undelivered"),
        (node.role not in config.roles, f"role {node.role} is not wanted"),
        (call.finish_reason == "length", "cut off at its token limit"),
        (bool(call.malformed), "malformed tool call"),
    )
    return next((reason for applies, reason in checks if applies), "")


class Reader:
    """Reads the examples of one run's store. `run`: its name, for their origin."""

    def __init__(self, store: Store, run: str, config: ExportConfig, tally: Tally) -> None:
        self._store = store
        self._run = run
        self._config = config
        self._tally = tally
        self._traces = TracesConfig(train_roles=config.roles)

    def chat(self) -> Iterator[ChatExample]:
        """One example per kept call."""
        for rollout, trace, payloads in self._kept():
            messages = _Conversations(trace)
            for node in self._calls(trace):
                try:
                    tools = offered_tools(node.call, payloads)
                    before, reply = messages.before(node), messages.reply(node)
                except (StoreError, msgspec.DecodeError):
                    self._drop(node, "its request cannot be read")
                    continue
                origin = self._origin(rollout, node.call.sampled_tokens)
                yield chat_example(origin, node.call_id, before, reply, tools)

    def tokens(self) -> Iterator[TokenExample]:
        """One example per path of a rollout that has a kept call."""
        for rollout, trace, _ in self._kept():
            chosen = {node.call_id for node in self._calls(trace)}
            nodes = {
                name: msgspec.structs.replace(node, excluded="") if name in chosen else node
                for name, node in trace.by_id.items()
            }
            for sample in build_samples(Trace(by_id=nodes), rollout.spec):
                trained = sample.trained.copy()
                places = call_numbers(sample, nodes)
                trained[sample.trained] = np.array([sample.call_ids[place] in chosen for place in places], np.bool_)
                if trained.any():
                    yield TokenExample(
                        origin=self._origin(rollout, int(trained.sum())),
                        sample_id=sample.sample_id,
                        input_ids=sample.token_ids,
                        trained=trained,
                    )

    def _kept(self) -> Iterator[tuple[Rollout, Trace, dict[str, CallPayload]]]:
        for rollout in self._store.rollouts():
            self._tally.rollouts += 1
            reason = rollout_reason(rollout, self._config)
            if not reason:
                try:
                    found = self._read(rollout)
                except (StoreError, AlignmentError):
                    reason = "its calls cannot be read (released, or damaged)"
            if reason:
                self._tally.dropped_rollouts[reason] += 1
                continue
            self._tally.kept_rollouts += 1
            yield rollout, *found

    def _read(self, rollout: Rollout) -> tuple[Trace, dict[str, CallPayload]]:
        calls = self._store.calls(rollout.spec.rollout_id, rollout.attempt)
        payloads = {call.call_id: self._store.payload(call) for call in calls if call.payload is not None}
        return build_trace(calls, [payloads.get(call.call_id) for call in calls], self._traces), payloads

    def _calls(self, trace: Trace) -> Sequence[Node]:
        kept = []
        for node in trace.nodes:
            self._tally.calls += 1
            reason = call_reason(node, self._config)
            if reason:
                self._tally.dropped_calls[reason] += 1
            else:
                self._tally.kept_calls += 1
                kept.append(node)
        return kept

    def _drop(self, node: Node, reason: str) -> None:
        """A call that turned out to be of no use after it had been kept."""
        self._tally.kept_calls -= 1
        self._tally.dropped_calls[reason] += 1

    def _origin(self, rollout: Rollout, tokens: int) -> Origin:
        source, harness = source_and_harness(rollout)
        return Origin(
            run=self._run,
            rollout_id=rollout.spec.rollout_id,
            source=source,
            task_id=rollout.spec.task_id,
            harness=harness,
            reward=rollout.reward if rollout.reward is not None else 0.0,
            tokens=tokens,
        )


class _Conversations:
    """The messages of a trace's calls, each put together once from those of its base."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._known: dict[str, tuple[Message, ...]] = {}

    def before(self, node: Node) -> tuple[Message, ...]:
        """The messages of a call's request. Raises StoreError."""
        path: list[Node] = []
        step: Node | None = node
        while step is not None and step.call_id not in self._known:
            path.append(step)
            step = self._base(step)
        for one in reversed(path):
            base = self._base(one)
            start = () if base is None else (*self._known[base.call_id], self.reply(base))
            self._known[one.call_id] = (*start, *msgspec.json.decode(one.messages_json, type=tuple[Message, ...]))
        return self._known[node.call_id]

    def _base(self, node: Node) -> Node | None:
        name = node.call.base_call_id
        if name and name not in self._trace.by_id:
            raise StoreError(f"call {name} is not among the calls of its attempt", "the record is damaged")
        return self._trace.by_id[name] if name else None

    def reply(self, node: Node) -> Message:
        """A call's reply."""
        return reply_message(msgspec.json.decode(node.reply_json, type=ParsedMessage))
