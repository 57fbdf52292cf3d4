"""What a request says before its body is read."""

import pytest
from aiohttp.test_utils import make_mocked_request
from gateway_world import SECRET
from hypothesis import given
from hypothesis import strategies as st

from whippletree.errors import RequestError
from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.keys import control_key, mint
from whippletree.gateway.requests import dialect_of, flag, is_control, request_key, seconds, shown

KEY, OTHER = mint(SECRET, "r0", 1), mint(SECRET, "r1", 1)


def asked(path="/v1/messages", headers=None):
    return make_mocked_request("GET", path, headers=headers or {})


@pytest.mark.parametrize(
    ("path", "headers", "found"),
    [
        ("/x", {}, ""),
        ("/x", {"Authorization": f"Bearer {KEY}"}, KEY),
        ("/x", {"Authorization": f"bearer  {KEY} "}, KEY),
        ("/x", {"Authorization": f"Basic {KEY}"}, ""),
        ("/x", {"x-api-key": KEY}, KEY),
        ("/x", {"x-goog-api-key": KEY}, KEY),
        (f"/x?key={KEY}", {}, KEY),
        (f"/r/{KEY}/x", {"Authorization": f"Bearer {OTHER}"}, KEY),
        ("/x", {"Authorization": "Bearer placeholder", "x-api-key": KEY}, KEY),
        ("/x", {"Authorization": "Bearer placeholder", "x-api-key": "dummy"}, "placeholder"),
        (f"/r/{KEY}", {"Authorization": "Bearer intercepted"}, KEY),
        ("/r/run-42/x", {"x-api-key": KEY}, KEY),
        ("/x", {"Authorization": f"Bearer {control_key(SECRET)}"}, control_key(SECRET)),
    ],
)
def test_of_several_keys_the_paths_wins_then_the_first_that_looks_like_ours(path, headers, found):
    assert request_key(asked(path, headers)) == found


@given(st.lists(st.sampled_from([KEY, control_key(SECRET), "v1", "a b", "..", "é", "wt-", ""]), max_size=6), st.booleans())
def test_a_shown_path_has_no_key(parts, below):
    path = (f"/r/{KEY}" if below else "") + "/" + "/".join(parts)
    said = shown(path)
    assert KEY not in said
    assert control_key(SECRET) not in said
    assert len(said) <= 200


def test_a_shown_path_hides_what_was_sent_in_the_place_of_a_key():
    assert shown("/r/secret-word/v1/embeddings") == "/r/<key>/v1/embeddings"
    assert shown("/r/secret-word") == "/r/<key>"
    assert shown("/results/plain") == "/results/plain"


@pytest.mark.parametrize(
    ("path", "headers", "name"),
    [
        ("/v1/chat/completions", {}, "chat"),
        ("/v1/messages", {}, "messages"),
        ("/r/k/v1/messages/count_tokens", {}, "messages"),
        ("/v1/responses", {}, "responses"),
        ("/r/k/responses/resp_1/cancel", {}, "responses"),
        ("/v1beta/models/gemini-2.5-pro:generateContent", {}, "gemini"),
        ("/r/k/v1beta/models", {}, "gemini"),
        ("/v1/models/m:generateContent", {}, "gemini"),
        ("/v1/models", {}, "chat"),
        ("/v1/models", {"anthropic-version": "2023-06-01"}, "messages"),
        ("/v1/models", {"x-api-key": "k"}, "messages"),
        ("/", {"x-goog-api-key": "k"}, "gemini"),
        ("/v1/responsesx", {}, "chat"),
        ("/v1/responses", {"anthropic-version": "2023-06-01"}, "responses"),
        ("/v1/chat/completions", {"x-api-key": "k"}, "chat"),
        ("/v1/models", {"x-goog-api-key": "k"}, "gemini"),
        ("/", {}, "chat"),
        ("", {}, "chat"),
        ("/api/rollouts/x:countTokens", {}, "chat"),  # the rollout API has one form
        ("/api/queue", {"x-goog-api-key": "k"}, "chat"),
    ],
)
def test_every_path_suggests_a_dialect(path, headers, name):
    wanted = DIALECTS.get(name, DIALECTS["chat"])
    assert dialect_of(path, headers) is wanted


@pytest.mark.parametrize(
    ("path", "control"),
    [
        ("/control/hold", True),
        ("/r/k/control/hold", True),
        ("/sessions", True),
        ("/pause", True),
        ("/rollout/r1/v1/tools/reset", True),
        ("/api/rollouts/r1/reward", True),
        ("/v1/sessions/r1/finish", True),
        ("/update_weights", True),
        ("/api/show", False),
        ("/api/v1/models", False),
        ("/v1/models", False),
        ("/v1/embeddings", False),
        ("/v1/models/reward", False),
        ("/", False),
    ],
)
def test_control_is_what_only_a_trainer_asks_for(path, control):
    assert is_control(path) is control


@pytest.mark.parametrize("text", ["x", "-1", "nan", "inf", "1e9", "", "1,5"])
def test_a_limit_that_is_none_is_refused(text):
    with pytest.raises(RequestError, match="limit is not a number of seconds"):
        seconds(asked(f"/x?limit={text}"), "limit")


def test_limits_and_switches_are_read():
    assert seconds(asked("/x?limit=1.5"), "limit") == 1.5
    assert seconds(asked("/x"), "limit") is None
    assert [flag(asked(f"/x?abort={text}"), "abort") for text in ("1", "TRUE", "yes", "0", "false", "no")] == [True] * 3 + [
        False
    ] * 3
    assert flag(asked("/x"), "abort", True)
    with pytest.raises(RequestError, match="abort is neither on nor off"):
        flag(asked("/x?abort=maybe"), "abort")
