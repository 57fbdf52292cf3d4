"""What makes two requests the same one."""

import json

import pytest

from whippletree.errors import RequestError
from whippletree.gateway.dialects import Target
from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.digest import fields_of, request_digest

CHAT, MESSAGES, GEMINI = DIALECTS["chat"], DIALECTS["messages"], DIALECTS["gemini"]
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}


def digest(body, dialect=CHAT, target=Target()):  # noqa: B008 - immutable
    return request_digest(dialect, fields_of(json.dumps(body).encode()), target)


@pytest.mark.parametrize(
    "change", [{"max_tokens": 99}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}]
)
def test_a_retry_may_change_transport_and_limit(change):
    assert digest(BODY) == digest({**BODY, **change})
    assert digest(BODY) == digest(dict(reversed(BODY.items())))


@pytest.mark.parametrize("change", [{"model": "n"}, {"temperature": 0.5}, {"messages": []}, {"stop": ["a"]}, {"seed": 1}])
def test_any_other_field_makes_another_request(change):
    assert digest(BODY) != digest({**BODY, **change})


def test_the_path_and_the_dialect_count():
    assert digest(BODY) != digest(BODY, MESSAGES)
    assert digest(BODY, GEMINI, Target(model="a")) != digest(BODY, GEMINI, Target(model="b"))
    assert digest(BODY, GEMINI, Target(model="a", stream=True)) == digest(BODY, GEMINI, Target(model="a", stream=False))


def test_fields_cannot_run_into_one_another():
    assert digest({"a": 1, "b": 2}) != digest({"a": 1, 'b":2,"c': 2})


def test_what_is_no_object_is_refused():
    for body in (b"[]", b"{", b"\xff"):
        with pytest.raises(RequestError, match="cannot be read"):
            fields_of(body)
