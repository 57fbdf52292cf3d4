"""The Messages dialect against any JSON: a request that can be rendered, or a refusal of the client's."""

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.errors import RequestError
from whippletree.gateway.dialects import Target
from whippletree.gateway.dialects.messages import MessagesDialect

DIALECT = MessagesDialect()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KINDS = ["text", "image", "document", "thinking", "tool_use", "tool_result", "tool_reference", "search_result", "novelty"]
FIELDS = ["text", "source", "id", "name", "input", "tool_use_id", "content", "is_error", "tool_name", "data", "signature"]
BLOCKS = st.builds(
    lambda kind, rest: {**rest, "type": kind}, st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), JSON)
)
SENT = st.fixed_dictionaries(
    {},
    optional={
        "messages": JSON
        | st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "assistant", "system"]), "content": JSON | st.lists(BLOCKS, max_size=3)}
            ),
            max_size=3,
        ),
        "system": JSON | st.lists(BLOCKS, max_size=2),
        "tools": JSON | st.lists(st.dictionaries(st.sampled_from(["name", "type", "input_schema", "defer_loading"]), JSON)),
        "tool_choice": JSON,
        "thinking": JSON,
        "output_config": JSON,
        "stop_sequences": JSON,
    },
)


@settings(max_examples=300)
@given(SENT)
def test_any_json_parses_or_is_refused(body):
    try:
        request = DIALECT.parse(json.dumps(body).encode(), Target())
    except RequestError as error:
        assert error.status == 400
    else:
        assert request.messages
        msgspec.json.encode(request)
