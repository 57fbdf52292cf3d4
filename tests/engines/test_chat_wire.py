"""Writing chat requests: nothing is lost, and what a run fixes stays fixed."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.engines.chat_wire import Wording, arguments_of, chat_body, text_of
from whippletree.types import ChatRequest, Message, Sampling, ToolCall, ToolSpec

TEXT = st.text(max_size=12)
CALLS = st.lists(st.builds(ToolCall, id=TEXT, name=TEXT, arguments=TEXT), max_size=2).map(tuple)
MESSAGES = st.lists(
    st.builds(Message, role=st.sampled_from(["system", "user", "assistant", "tool"]), content=TEXT, tool_calls=CALLS),
    max_size=5,
).map(tuple)
FIXED = ("model", "temperature", "top_p", "max_tokens", "stream", "messages", "stream_options")


@settings(max_examples=60, deadline=None)
@given(MESSAGES, st.dictionaries(st.sampled_from([*FIXED, "user", "metadata"]), st.integers(), max_size=6))
def test_everything_of_the_internal_form_is_written_and_extras_change_nothing_fixed(
    messages: tuple[Message, ...], extra: dict[str, Any]
) -> None:
    request = ChatRequest(model="x", messages=messages, tools=(ToolSpec(name="t"),), extra=extra)
    body = json.loads(chat_body("m", request, Sampling(max_tokens=3), Wording()))
    plain = json.loads(chat_body("m", ChatRequest(model="x", messages=messages), Sampling(max_tokens=3), Wording()))
    assert [one["role"] for one in body["messages"]] == [message.role for message in messages]
    assert [one["content"] or "" for one in body["messages"]] == [message.content for message in messages]
    calls = [[call["function"]["arguments"] for call in one.get("tool_calls", ())] for one in body["messages"]]
    assert calls == [[call.arguments for call in message.tool_calls] for message in messages]
    assert {key: body[key] for key in FIXED} == {key: plain[key] for key in FIXED}
    assert {key: body[key] for key in ("user", "metadata") if key in extra} == {
        key: value for key, value in extra.items() if key not in FIXED
    }


def test_text_and_arguments_of_any_type_are_read_or_left_out() -> None:
    assert text_of([{"type": "text", "text": "a"}, {"type": "image"}, "b", {"text": 3}]) == "a"
    assert (text_of(None), text_of(3), text_of("x")) == ("", "", "x")
    assert (arguments_of(None), arguments_of("{"), arguments_of({"a": [1]})) == ("", "{", '{"a":[1]}')
