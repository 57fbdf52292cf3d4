"""Sampled turns for tests of reply writers: made by hypothesis, and cut into deltas anywhere."""

import json

from hypothesis import strategies as st

from whippletree.gateway.dialects import ReplyHead, Target
from whippletree.protocols import StreamDelta
from whippletree.types import Call, CallTimes, ChatRequest, ParsedMessage, Sampling, ToolCall

CALL = Call(
    call_id="c-12", rollout_id="r", attempt=1, index=0, digest="d", prompt_tokens=7, sampled_tokens=5, finish_reason="stop",
    times=CallTimes(received=0.0), sampling=Sampling(), cached_tokens=3,
)  # fmt: skip

TEXTS = st.text(max_size=30)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3)
)
OBJECTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False))
NAMES = st.from_regex(r"\A[a-z_]{1,8}\Z")


def head(*, sse: bool = True, **request: object) -> ReplyHead:
    """What a reply says of itself, for a request with these fields."""
    asked = ChatRequest(model="policy", messages=(), include_usage=True, **request)
    return ReplyHead(
        call_id="c-12", model="policy", created=1700000000, request=asked, prompt_tokens=7, target=Target(stream=True, sse=sse)
    )


@st.composite
def turns(draw, arguments=OBJECTS, texts=TEXTS):
    """A sampled turn; its calls have distinct ids."""
    calls = draw(st.lists(st.tuples(NAMES, arguments), max_size=3))
    tool_calls = tuple(ToolCall(id=f"call_{n}", name=name, arguments=text) for n, (name, text) in enumerate(calls))
    finish = "tool_calls" if calls else draw(st.sampled_from(["stop", "length"]))
    return ParsedMessage(content=draw(texts), reasoning=draw(texts), tool_calls=tool_calls, finish_reason=finish)


def _deltas(message, pieces):
    deltas = [StreamDelta(reasoning=piece) for piece in pieces(message.reasoning)]
    deltas += [StreamDelta(content=piece) for piece in pieces(message.content)]
    for index, call in enumerate(message.tool_calls):
        deltas.append(StreamDelta(tool_index=index, tool_id=call.id, tool_name=call.name))
        deltas += [StreamDelta(tool_index=index, arguments=piece) for piece in pieces(call.arguments)]
    return deltas


def cut(message, data):
    """Deltas of a turn, its texts cut anywhere."""

    def pieces(text):
        places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
        return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True) if text[a:b]]

    return _deltas(message, pieces)


def in_pieces(message, size):
    """Deltas of a turn, its texts in pieces of `size` characters."""
    return _deltas(message, lambda text: [text[place : place + size] for place in range(0, len(text), size)])


def by_character(message):
    """Deltas of a turn, one for each character."""
    return in_pieces(message, 1)


def written(dialect, reply_head, deltas, message, tokens=()):
    """The bytes of a whole stream."""
    writer = dialect.stream(reply_head)
    return b"".join([*(writer.delta(delta) for delta in deltas), writer.end(CALL, message, tokens)])
