"""Turns as messages and as deltas."""

from hypothesis import given
from hypothesis import strategies as st

from whippletree.gateway.turns import message_of, replayed_deltas
from whippletree.protocols import StreamDelta
from whippletree.types import ParsedMessage, ToolCall

TURNS = st.builds(
    ParsedMessage,
    content=st.text(max_size=12),
    reasoning=st.text(max_size=12),
    tool_calls=st.lists(
        st.builds(
            ToolCall,
            id=st.text("ab", min_size=1, max_size=3),
            name=st.sampled_from(["bash", "x"]),
            arguments=st.text(max_size=9),
        ),
        max_size=3,
    ).map(tuple),
)


def test_a_recorded_turn_as_deltas():
    message = ParsedMessage(content="a", reasoning="r", tool_calls=(ToolCall(id="c", name="n", arguments="{}"),))
    assert replayed_deltas(message) == [
        StreamDelta(reasoning="r"),
        StreamDelta(content="a"),
        StreamDelta(tool_index=0, tool_id="c", tool_name="n", arguments="{}"),
    ]


def cut(delta):
    """A delta as several, one per character of its text."""
    if delta.tool_index < 0:
        return [StreamDelta(content=c) for c in delta.content] + [StreamDelta(reasoning=c) for c in delta.reasoning]
    head = StreamDelta(tool_index=delta.tool_index, tool_id=delta.tool_id, tool_name=delta.tool_name)
    return [head, *(StreamDelta(tool_index=delta.tool_index, arguments=c) for c in delta.arguments)]


@given(TURNS)
def test_the_deltas_of_a_turn_are_that_turn(turn):
    deltas = replayed_deltas(turn)
    finish = "tool_calls" if turn.tool_calls else "stop"
    for pieces in (deltas, [piece for delta in deltas for piece in cut(delta)]):
        back = message_of(pieces, "stop")
        assert (back.content, back.reasoning, back.tool_calls, back.finish_reason) == (
            turn.content,
            turn.reasoning,
            turn.tool_calls,
            finish,
        )


def test_a_turn_that_was_cut_says_so_even_with_calls():
    deltas = [StreamDelta(tool_index=0, tool_id="c", tool_name="n", arguments="{")]
    assert message_of(deltas, "length").finish_reason == "length"
