"""A rollout for people and programs to read: each call with text, ids, logprobs and policy versions.

Invariants (tests/traces/test_traces_export.py):
- `describe` holds every token of the trace once: joined along a call's ancestry, the pieces are its prompt and sampled ids;
- control characters of sampled text reach the page escaped, never raw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whippletree.protocols import Renderer
from whippletree.traces.stages import Funnel, alarm, funnel
from whippletree.traces.tree import Node, Trace
from whippletree.types import Struct

Decode = Callable[[Sequence[int]], str]


class TokenText(Struct):
    """One sampled token. `logprob` is None where none was recorded.

    Example: TokenText(id=17, text=" cat", logprob=-0.12, version=3)
    """

    id: int
    text: str
    logprob: float | None = None
    version: int = -1


class CallText(Struct):
    """One call. `new_text` is what its prompt has after its parent's prompt and reply (the whole prompt of a root).

    Example: CallText(call_id="c-1", index=0, new_ids=(1, 2), new_text="hi", sampled_text="yes", finish_reason="stop")
    """

    call_id: str
    index: int
    new_ids: tuple[int, ...]
    new_text: str
    sampled_text: str
    finish_reason: str
    sampled: tuple[TokenText, ...] = ()
    parent: str = ""
    prefix_break: str = ""
    role: str = "main"
    delivered: bool = False
    excluded: str = ""
    malformed: str = ""
    error: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0


class TraceText(Struct):
    """A whole trace and its funnel, ready for JSON (`msgspec.json.encode`).

    Example: TraceText(calls=(CallText(...),), funnel=Funnel(received=1, ...))
    """

    calls: tuple[CallText, ...]
    funnel: Funnel


def describe(trace: Trace, renderer: Renderer) -> TraceText:
    """The trace with its text."""
    calls = tuple(_call(node, trace, renderer.decode) for node in trace.nodes)
    return TraceText(calls=calls, funnel=funnel(trace))


def explain(trace: Trace, renderer: Renderer, *, tokens: bool = False) -> str:
    """The trace as lines of text; with `tokens`, also one line per sampled token."""
    described = describe(trace, renderer)
    lines = [line for call in described.calls for line in [*_lines(call, tokens), ""]]
    counts = described.funnel
    lines.append(
        f"{counts.received} calls: {counts.captured} captured, {counts.delivered} delivered, {counts.trained} trained in "
        f"{counts.samples} samples; {counts.trained_tokens} of {counts.sampled_tokens} sampled tokens trained"
    )
    tables = (("roles", counts.roles), ("prefix breaks", counts.breaks), ("left out", counts.excluded))
    lines += [f"{name}: {', '.join(f'{key} {count}' for key, count in table.items())}" for name, table in tables if table]
    if counts.first_zero:
        lines.append(alarm(counts) or counts.first_zero)
    return "\n".join(lines)


def _call(node: Node, trace: Trace, decode: Decode) -> CallText:
    call = node.call
    new_ids = trace.new_ids(node).tolist()
    sampled_ids = node.sampled_ids.tolist()
    return CallText(
        call_id=call.call_id,
        index=call.index,
        new_ids=tuple(new_ids),
        new_text=decode(new_ids),
        sampled_text=decode(sampled_ids),
        sampled=_tokens(node, decode),
        finish_reason=call.finish_reason,
        parent=node.parent,
        prefix_break=call.prefix_break,
        role=node.role,
        delivered=node.delivered,
        excluded=node.excluded,
        malformed=call.malformed,
        error=call.error,
        prompt_tokens=call.prompt_tokens,
        cached_tokens=call.cached_tokens,
        seconds=max(call.times.finished - call.times.received, 0.0),
    )


def _tokens(node: Node, decode: Decode) -> tuple[TokenText, ...]:
    logprobs = node.logprobs.tolist() if len(node.logprobs) else [None] * len(node.sampled_ids)
    columns = zip(node.sampled_ids.tolist(), logprobs, node.versions.tolist(), strict=True)
    return tuple(
        TokenText(id=index, text=decode([index]), logprob=logprob, version=version) for index, logprob, version in columns
    )


def _lines(call: CallText, tokens: bool) -> list[str]:
    versions = sorted({token.version for token in call.sampled})
    facts = [
        f"continues {call.parent}" if call.parent else f"new root ({call.prefix_break or 'first'})",
        f"{call.prompt_tokens} prompt tokens ({call.cached_tokens} cached) + {len(call.sampled)} sampled",
        f"ended by {call.finish_reason}",
        f"version {', '.join(map(str, versions))}" if versions else "no version",
        f"{call.seconds:.2f} s",
        f"not trained: {call.excluded}" if call.excluded else "trained",
    ]
    lines = [f"call {call.index} {call.call_id} [{call.role}]: " + ", ".join(facts)]
    lines += [f"  {name}: {text}" for name, text in (("malformed", call.malformed), ("error", call.error)) if text]
    lines += [f"  > {line}" for line in _printable(call.new_text)]
    lines += [f"  < {line}" for line in _printable(call.sampled_text)]
    if tokens:
        lines += [f"    {token.id:>7} {_number(token.logprob)} v{token.version} {token.text!r}" for token in call.sampled]
    return lines


def _printable(text: str) -> list[str]:
    """Lines of the text with every character that is not printable escaped."""
    escaped = (c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(escaped).removesuffix("\n").split("\n") if text else []


def _number(logprob: float | None) -> str:
    return "    none" if logprob is None else f"{logprob:8.4f}"
