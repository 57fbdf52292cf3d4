"""Reading one turn of a chat endpoint: events in, chunks out. Pure, one reader per request.

    events ──► error? ──► ids (prompt ids, token ids and logprobs came) ──► ChatChunk with ids
                     └──► text, reasoning, tool calls ──────────────────► ChatChunk with deltas

Invariants (tests/engines/test_chat_reader.py, tests/cases/test_cases_engines.py):
- an error of the server is an error, also inside a 200, after some text, or in place of the stream;
- ids are given only with the prompt's ids and one logprob each; a turn that begins with ids keeps them, or EngineError;
- the turn has one end, the last chunk, with the server's counts wherever they came; a turn without an end is EngineUnavailable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

from whippletree.engines.chat_calls import CallAssembler
from whippletree.engines.chat_wire import CallIn, ChatEvent, ChoiceIn, DeltaIn, UsageIn, text_of
from whippletree.engines.wire import MISSING_LOGPROB, OVERFLOW_STEP, RETRYABLE_STATUS, overflows
from whippletree.errors import ContextOverflow, EngineError, EngineUnavailable
from whippletree.protocols import ChatChunk, StreamDelta

Finish = Literal["stop", "length", "tool_calls", "abort"]

LENGTH_WORDS = ("length", "max_tokens", "model_length", "max_output_tokens")
CALL_WORDS = ("tool_calls", "function_call", "tool_use")
ABORT_WORDS = ("abort", "cancelled", "canceled")
FAILED_WORDS = ("error", "network_error", "engine_error")
PASSING_WORDS = ("rate_limit", "overloaded", "server_error", "timeout", "unavailable", "internal")


class ChatReader:
    """State of one turn. `name` and `request_id` are named in errors, `clean` takes secrets out of what the server says there.
    `begun`: something was sampled."""

    def __init__(self, name: str, request_id: str, clean: Callable[[str], str] = str) -> None:
        self._clean = clean
        self._where = f"{name}, request {request_id}"
        self._calls = CallAssembler(request_id)
        self._usage: UsageIn | None = None
        self._prompt: list[int] = []
        self._ids: bool | None = None  # whether this turn is told in ids; None before its first token
        self._prompt_given = False
        self._sampled = 0  # ids
        self._pieces = 0  # of an answer that is told in text
        self._finish: Finish | None = None
        self.policy_version = 0
        self.begun = False
        self.logprobs = 0  # how many came, with ids or without

    @property
    def finished(self) -> bool:
        """True once the finish reason has come; only counts may follow."""
        return self._finish is not None

    def feed(self, events: Iterable[ChatEvent]) -> ChatChunk | None:
        """What these events add, as one chunk. Raises EngineError and its kinds."""
        deltas: list[StreamDelta] = []
        ids: list[int] = []
        logprobs: list[float] = []
        for event in events:
            self._check(event)
            self._usage = event.usage or self._usage
            self._prompt = self._prompt or event.prompt_token_ids or []
            for choice in (event.choices or ())[:1]:
                self._take_ids(choice, ids, logprobs)
                deltas += self._deltas(choice)
                if choice.finish_reason:
                    self._finish = self._meaning(choice.finish_reason)
        if self._ids:
            deltas = []
        if not deltas and not ids:
            return None
        prompt = self._prompt if ids and not self._prompt_given else []
        self._prompt_given = self._prompt_given or bool(prompt)
        return ChatChunk(
            deltas=tuple(_joined(deltas)),
            prompt_ids=prompt,
            token_ids=ids,
            logprobs=logprobs,
            policy_version=self.policy_version,
        )

    def end(self, *, done: bool) -> ChatChunk:
        """The last chunk. `done`: the server said that nothing follows. Raises EngineUnavailable when the turn was cut."""
        if self._finish is None and not (done and self.begun):
            raise EngineUnavailable(f"{self._where}: the stream ended without a finish reason", "retry")
        finish = self._finish or "stop"
        if finish == "stop" and self._calls.begun:
            finish = "tool_calls"
        usage = self._usage or UsageIn()
        details = usage.prompt_tokens_details
        return ChatChunk(
            deltas=() if self._ids else tuple(self._calls.settle()),
            policy_version=self.policy_version,
            finish_reason=finish,
            prompt_tokens=usage.prompt_tokens or len(self._prompt),
            sampled_tokens=usage.completion_tokens or self._sampled or self._pieces,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
        )

    def aborted(self) -> ChatChunk:
        """The last chunk of a request that was ended from outside."""
        return ChatChunk(policy_version=self.policy_version, finish_reason="abort", sampled_tokens=self._sampled)

    def _check(self, event: ChatEvent) -> None:
        if event.error is not None:
            raise self._failed(event.error)
        if event.choices is None and event.usage is None:
            for told in (event.message, event.detail):
                if told:
                    raise self._failed({"message": told, "code": event.code})

    def _failed(self, error: Any) -> EngineError:
        """The error that a server's own account of it means."""
        fields = error if isinstance(error, dict) else {"message": error}
        message, code, kind = (fields.get(key) for key in ("message", "code", "type"))
        text = f"{self._where}: {self._clean(str(message or kind or error))[:500]}"
        if overflows(f"{message} {code}"):
            return ContextOverflow(text, OVERFLOW_STEP)
        status = int(str(code)) if str(code).isdecimal() else 0
        passing = any(word in f"{kind} {code}" for word in PASSING_WORDS)
        if status in RETRYABLE_STATUS or 500 <= status < 600 or passing:
            return EngineUnavailable(text, "retry; if it persists, read the server's log")
        return EngineError(text, "the request is not one that this server serves, or the server failed; read its log")

    def _meaning(self, reason: str) -> Finish:
        if reason in FAILED_WORDS:
            raise EngineUnavailable(f"{self._where}: the server ended the turn with {reason!r}", "retry")
        if reason in LENGTH_WORDS:
            return "length"
        if reason in CALL_WORDS:
            return "tool_calls"
        return "abort" if reason in ABORT_WORDS else "stop"

    def _take_ids(self, choice: ChoiceIn, ids: list[int], logprobs: list[float]) -> None:
        found = choice.token_ids or []
        values = [entry.logprob for entry in (choice.logprobs.content if choice.logprobs else None) or ()]
        self.logprobs += len(values)
        if self._ids is None and (found or values or _says_something(choice)):
            self._ids = bool(found and values and self._prompt)
            self.begun = True
        if not self._ids:
            self._pieces += _says_something(choice)
            return
        if len(found) != len(values):
            raise EngineError(
                f"{self._where}: {len(found)} token ids came with {len(values)} logprobs",
                "the server must return one logprob for each token id, or no ids at all",
            )
        for value in values:
            if value is None or not math.isfinite(value) or value <= MISSING_LOGPROB:
                raise EngineError(
                    f"{self._where}: logprob {value} at sampled token {self._sampled}",
                    "the model gave no finite logit there; check its weights",
                )
            self._sampled += 1
            logprobs.append(value)
        ids += found

    def _deltas(self, choice: ChoiceIn) -> list[StreamDelta]:
        delta = choice.delta or choice.message or DeltaIn()
        found: list[StreamDelta] = []
        reasoning = delta.reasoning_content or text_of(delta.reasoning)
        content = text_of(delta.content) or delta.refusal or ""
        found += [StreamDelta(reasoning=reasoning)] if reasoning else []
        found += [*self._calls.settle(), StreamDelta(content=content)] if content else []
        whole = choice.message is not None
        fragments = list(delta.tool_calls or ())
        if delta.function_call is not None:
            fragments.append(CallIn(index=0, function=delta.function_call))
        for place, fragment in enumerate(fragments):
            index = fragment.index if fragment.index is not None or not whole else place
            found += self._calls.feed(CallIn(index=index, id=fragment.id, function=fragment.function))
        return found


def _says_something(choice: ChoiceIn) -> bool:
    delta = choice.delta or choice.message or DeltaIn()
    return bool(text_of(delta.content) or delta.reasoning_content or text_of(delta.reasoning) or delta.tool_calls)


def _joined(deltas: list[StreamDelta]) -> list[StreamDelta]:
    """Neighbours of one kind as one delta; the head of a call stays apart from its arguments."""
    joined: list[StreamDelta] = []
    for delta in deltas:
        before = joined[-1] if joined else None
        alike = before is not None and _kind(before) == _kind(delta) != "head"
        if before is None or not alike:
            joined.append(delta)
            continue
        joined[-1] = StreamDelta(
            content=before.content + delta.content,
            reasoning=before.reasoning + delta.reasoning,
            tool_index=before.tool_index,
            arguments=before.arguments + delta.arguments,
        )
    return joined


def _kind(delta: StreamDelta) -> str:
    if delta.tool_id or delta.tool_name:
        return "head"
    if delta.tool_index >= 0:
        return f"call {delta.tool_index}"
    return "content" if delta.content else "reasoning"
