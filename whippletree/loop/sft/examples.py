"""Examples to learn from, and which of them are kept: pure functions over plain values.

Invariants (tests/loop/test_sft_examples.py):
- two examples that differ in nothing but the ids of their tool calls are one; those that differ in a word are two;
- a balanced choice gives no harness more trained tokens than its limit, and none is without an example that fits;
- every example is kept or dropped for one reason, and the same examples and seed give the same choice.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from whippletree.engines.chat_wire import (
    CallOut,
    FunctionOut,
    MessageOut,
    ToolFunctionOut,
    ToolOut,
    Wording,
    message_out,
    tool_out,
)
from whippletree.types import Bool, Int32, Message, Struct, ToolCall, ToolSpec

E = TypeVar("E")

WORDING = Wording(reasoning="reasoning_content")


class Origin(Struct):
    """Where an example comes from. `tokens`: how many tokens of it are trained, by the engine that sampled them.

    Example: Origin(run="demo", rollout_id="g00001-m03", source="trail", task_id="trail-2-0-17", harness="mini-swe-agent",
                    reward=1.0, tokens=9)
    """

    run: str
    rollout_id: str
    source: str
    task_id: str
    harness: str
    reward: float
    tokens: int


class ChatExample(Origin, omit_defaults=False):
    """A line of chat.jsonl: a conversation whose message number `target`, the last one, is the reply to learn. The messages
    before it are what the model was shown, however they came about, and nothing of them is learned.

    Example: ChatExample(..., call_id="c-1", target=1, messages=[MessageOut(role="user", content="hi"),
                         MessageOut(role="assistant", content="hello")], tools=[])
    """

    call_id: str
    target: int
    messages: list[MessageOut]
    tools: list[ToolOut] = []


class TokenExample(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A row of tokens.parquet: a path of a rollout's calls, as it was fed and sampled. Shapes [L]: `input_ids`; `trained`, the
    sampled tokens to learn."""

    origin: Origin
    sample_id: str
    input_ids: Int32
    trained: Bool


def chat_example(
    origin: Origin, call_id: str, messages: Sequence[Message], reply: Message, tools: Sequence[ToolSpec]
) -> ChatExample:
    """The line of one call."""
    written = [message_out(message, WORDING) for message in [*messages, reply]]
    return ChatExample(
        **{name: getattr(origin, name) for name in Origin.__struct_fields__},
        call_id=call_id,
        messages=written,
        tools=[tool_out(tool) for tool in tools],
        target=len(written) - 1,
    )


def to_message(written: MessageOut) -> Message:
    """A message of a line in the internal form."""
    content = written.content if isinstance(written.content, str) else ""
    calls = tuple(
        ToolCall(id=call.id or "", name=call.function.name, arguments=call.function.arguments or "")
        for call in written.tool_calls
    )
    return Message(
        role=written.role,  # type: ignore[arg-type]  # whoever reads a line checks it
        content=content,
        reasoning=written.reasoning_content or written.reasoning or "",
        tool_calls=calls,
        tool_call_id=written.tool_call_id or "",
        name=written.name or "",
    )


def to_tool(written: ToolOut) -> ToolSpec:
    """A tool of a line in the internal form."""
    function: ToolFunctionOut = written.function
    return ToolSpec(name=function.name, description=function.description or "", parameters=function.parameters)


def chat_key(example: ChatExample) -> bytes:
    """What two equal lines have in common: messages and tools, tool calls numbered in the order of their first mention."""
    numbers: dict[str, str] = {}

    def number(name: str | None) -> str | None:
        return None if name is None else numbers.setdefault(name, f"call_{len(numbers)}")

    def plain(call: CallOut) -> CallOut:
        function = FunctionOut(name=call.function.name, arguments=call.function.arguments)
        return CallOut(id=number(call.id), type="function", function=function)

    messages = []
    for message in example.messages:
        calls = [plain(call) for call in message.tool_calls]
        messages.append(msgspec.structs.replace(message, tool_calls=calls, tool_call_id=number(message.tool_call_id)))
    return hashlib.blake2b(msgspec.json.encode((messages, example.tools)), digest_size=16).digest()


def token_key(example: TokenExample) -> bytes:
    """What two equal rows have in common: ids and mask."""
    content = example.input_ids.astype("<i4").tobytes() + np.packbits(example.trained).tobytes()
    return hashlib.blake2b(content, digest_size=16).digest()


def unique(examples: Sequence[E], key: Callable[[E], Hashable]) -> tuple[list[E], list[E]]:
    """The first of each kind, in order, and the others."""
    seen: set[Hashable] = set()
    kept: list[E] = []
    left: list[E] = []
    for example in examples:
        found = key(example)
        (left if found in seen else kept).append(example)
        seen.add(found)
    return kept, left


def balanced(sizes: Sequence[tuple[str, int]], *, even: bool, limit: int, seed: int) -> list[bool]:
    """Which examples to keep, by harness and trained tokens of each. `even`: no harness gets more tokens than the one with the
    fewest has; `limit`: nor more than this (0: none). Within that, an example is taken where it fits, in a random order."""
    totals: dict[str, int] = defaultdict(int)
    for harness, tokens in sizes:
        totals[harness] += tokens
    budgets = dict(totals)
    if even and totals:
        budgets = dict.fromkeys(totals, min(totals.values()))
    if limit:
        budgets = {harness: min(budget, limit) for harness, budget in budgets.items()}
    kept = [False] * len(sizes)
    order = list(range(len(sizes)))
    random.Random(seed).shuffle(order)
    for place in order:
        harness, tokens = sizes[place]
        if tokens <= budgets[harness]:
            budgets[harness] -= tokens
            kept[place] = True
    return kept
