"""Grade a chat endpoint by what it sends, and ask whether it reads tool calls and follows a JSON Schema.

Raw and processed logprobs are told apart as in probe.py; without scores, a token's logprob at temperature 1 is the one that
came when that token was sampled at temperature 1.

Invariants (tests/engines/test_probe_chat.py):
- a feature counts only when it was seen to work; a refusal is a no, an endpoint that is away is EngineUnavailable;
- grade "tokens" needs the prompt's ids, token ids and logprobs, and the measurement of what the logprobs are.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Protocol, runtime_checkable

import msgspec

from whippletree.engines.probe import Draw, Measurement, decide
from whippletree.errors import EngineError, EngineUnavailable
from whippletree.types import ChatRequest, ChatTurn, EngineReport, Message, Sampling, Struct, ToolSpec

PROBE_TOKENS = 64
DRAWS = 32
TEMPERATURES = (1.0, 2.0)
SECRET = 7
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"number": {"type": "integer", "enum": [SECRET]}},
    "required": ["number"],
    "additionalProperties": False,
}
TOOL = ToolSpec(name="note", description="Write a number down.", parameters=SCHEMA)


class ChatSeen(Struct):
    """What one turn of a chat endpoint brought. `logprobs` counts those that came, with ids or without.

    Example: ChatSeen(content="hi", prompt_ids=12, token_ids=(5, 2), values=(-0.1, -0.2), logprobs=2)
    """

    content: str = ""
    prompt_ids: int = 0
    token_ids: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    logprobs: int = 0


@runtime_checkable
class ObservableChat(Protocol):
    """A chat endpoint that can say what it receives."""

    async def observe_chat(self, turn: ChatTurn, *, ids: bool) -> ChatSeen:
        """One turn, joined; with `ids` false neither ids nor logprobs are asked for."""
        ...


async def probe_chat(engine: ObservableChat, context_length: int = 0, tolerance: float = 0.1) -> EngineReport:
    """Grade an endpoint that has nothing but chat. Raises EngineUnavailable when it does not answer."""
    try:
        seen = await engine.observe_chat(_turn(_say("Say hello.")), ids=True)
        report = await _grade(engine, seen, tolerance)
    except EngineUnavailable:
        raise
    except EngineError as error:
        return EngineReport(grade="none", logprobs="none", detail=str(error), context_length=context_length)
    tool_calls, structured = await probe_features(engine)
    return msgspec.structs.replace(report, tool_calls=tool_calls, structured=structured, context_length=context_length)


async def probe_features(engine: ObservableChat) -> tuple[bool, bool]:
    """Whether the endpoint takes tools, and whether its reply follows a JSON Schema that hardly any free reply would.

    A model need not call a tool that it is offered: a request with a tool that is not refused counts.
    """
    return await _takes_tools(engine), await _follows_schema(engine)


async def _grade(engine: ObservableChat, seen: ChatSeen, tolerance: float) -> EngineReport:
    if not (seen.token_ids and seen.prompt_ids):
        grade = EngineReport(grade="text", logprobs="none", detail="a chat endpoint without token ids")
        return msgspec.structs.replace(grade, grade="logprobs") if seen.logprobs else grade
    first, second = [await _draws(engine, temperature) for temperature in TEMPERATURES]
    common = sorted(first.keys() & second.keys())
    draws = tuple(Draw(token_id=token, returned=second[token], score=first[token]) for token in common)
    measured = Measurement(sampled=len(seen.token_ids), agreement=0.0, temperature=TEMPERATURES[1], draws=draws)
    report = decide(measured, tolerance)
    return msgspec.structs.replace(report, detail=f"chat endpoint, {len(common)} tokens at two temperatures: {report.logprobs}")


async def _draws(engine: ObservableChat, temperature: float) -> dict[int, float]:
    """Logprobs of first tokens sampled at a temperature, by token."""
    turns = [_turn(_say("Say a word."), Sampling(temperature=temperature, max_tokens=1, seed=seed)) for seed in range(DRAWS)]
    seen = await asyncio.gather(*(engine.observe_chat(turn, ids=True) for turn in turns))
    return {turn.token_ids[0]: turn.values[0] for turn in seen if turn.token_ids and turn.values}


async def _takes_tools(engine: ObservableChat) -> bool:
    request = msgspec.structs.replace(_say(f"Write the number {SECRET} down with your tool."), tools=(TOOL,))
    try:
        await engine.observe_chat(_turn(request), ids=False)
    except EngineUnavailable:
        raise
    except EngineError:
        return False
    return True


async def _follows_schema(engine: ObservableChat) -> bool:
    request = msgspec.structs.replace(_say("Any text."), schema=SCHEMA)
    try:
        seen = await engine.observe_chat(_turn(request), ids=False)
        return bool(msgspec.json.decode(seen.content) == {"number": SECRET})
    except EngineUnavailable:
        raise
    except (EngineError, msgspec.DecodeError):
        return False


def _say(text: str) -> ChatRequest:
    return ChatRequest(model="", messages=(Message(role="user", content=text),))


def _turn(request: ChatRequest, sampling: Sampling | None = None) -> ChatTurn:
    sampling = sampling or Sampling(max_tokens=PROBE_TOKENS, seed=0)
    return ChatTurn(request_id=f"probe-{uuid.uuid4().hex[:8]}", request=request, sampling=sampling)
