"""What a harness may ask besides turns: counts, models, upgrades, whether anybody is there."""

import json

import pytest
from gateway_world import SECRET
from route_parts import REQUESTS, filled, path_of

from whippletree.engines.scripted import Faults
from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.keys import mint

KEY = mint(SECRET, "r0", 1)


async def ask(world, method, path, key=KEY, headers=None, **options):
    sent = {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
    async with world.http.request(method, world.url + path, headers=sent, **options) as response:
        body = await response.read()
        return response.status, json.loads(body) if body else None


@pytest.mark.parametrize("name", sorted(DIALECTS))
async def test_every_path_of_every_dialect_is_served_at_the_root_and_below_the_key(make_world, name):
    dialect = DIALECTS[name]
    async with make_world(lambda prompt: "hi") as world:
        for pattern in dialect.generate_paths:
            path = filled(pattern)
            assert (await ask(world, "POST", path, json=REQUESTS[name]))[0] == 200, path
            assert (await ask(world, "POST", f"/r/{KEY}{path}", key="", json=REQUESTS[name]))[0] == 200, path
            status, body = await ask(world, "POST", path, key="", json=REQUESTS[name])
            assert status == 401
            assert body == json.loads(dialect.error(_error(body, 401)))
        assert {call.dialect for call in world.calls()} == {name}


def _error(body, status):
    """The error whose text a body has, to compare the form."""
    from whippletree.errors import RequestError

    found = body.get("error", body)
    text = found["message"]
    cause, _, rest = text.partition(" (")
    return RequestError(cause, rest.removesuffix(")"), status=status, code="invalid_api_key")


@pytest.mark.parametrize("name", sorted(name for name in DIALECTS if DIALECTS[name].count_paths))
async def test_a_count_is_the_prompt_that_a_turn_would_have(make_world, name):
    async with make_world(lambda prompt: "hi") as world:
        for pattern in DIALECTS[name].count_paths:
            path = filled(pattern)
            for text in ("go", "go on " * 1000):
                body = json.loads(json.dumps(REQUESTS[name]).replace("go", text))
                status, counted = await ask(world, "POST", path, json=body)
                assert status == 200, counted
                numbers = [value for value in counted.values() if isinstance(value, int)]
                assert numbers[0] > len(text) // 4
        assert world.calls() == []


async def test_models_are_listed_in_the_form_of_whoever_asks(make_world):
    async with make_world(None, model="tiny") as world:
        _, listed = await ask(world, "GET", "/v1/models")
        assert [model["id"] for model in listed["data"]] == ["tiny"]
        assert listed["object"] == "list"
        assert (await ask(world, "GET", "/v1/models/openai/gpt-9"))[0] == 404
        if "messages" in DIALECTS:
            _, listed = await ask(world, "GET", "/v1/models", headers={"anthropic-version": "2023-06-01"})
            assert (listed["has_more"], listed["data"][0]["type"]) == (False, "model")
            status, one = await ask(world, "GET", "/v1/models/tiny", key="", headers={"x-api-key": KEY})
            assert (status, one["type"]) == (200, "model")
        if "gemini" in DIALECTS:
            _, listed = await ask(world, "GET", f"/v1beta/models?key={KEY}", key="")
            assert [model["name"] for model in listed["models"]] == ["models/tiny"]
            assert (await ask(world, "GET", "/v1beta/models/tiny", key="", headers={"x-goog-api-key": KEY}))[0] == 200


async def test_head_is_answered_without_a_key(make_world):
    async with make_world(None) as world:
        for path in ("/", "/v1", "/v1beta", "/api/hello", f"/r/{KEY}", f"/r/{KEY}/", f"/r/{KEY}/v1", "/healthz"):
            assert (await ask(world, "HEAD", path, key=""))[0] == 200, path


async def test_an_upgrade_to_websocket_is_answered_426_at_once(make_world):
    async with make_world(None) as world:
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        for path in ("/v1/responses", f"/r/{KEY}/v1/responses"):
            status, body = await ask(world, "GET", path, headers=upgrade)
            assert status == 426
            assert "POST" in json.dumps(body)
        assert (await ask(world, "GET", "/healthz"))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"messages": 3}',
        b'\xff\xfe{"messages": []}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"contents": [], "messages": [], "input": [], "safetySettings": {"x": "\xff"}, "metadata": {"x": "\xff"}}',
        b"[" * 100_000,
        b'{"messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    ],
    ids=lambda body: repr(body[:24]),
)
@pytest.mark.parametrize("name", sorted(DIALECTS))
async def test_a_bad_body_is_a_400_in_the_callers_dialect_and_the_session_goes_on(make_world, name, body):
    async with make_world(lambda prompt: "hi") as world:
        path = path_of(name)
        status, said = await ask(world, "POST", path, data=body)
        assert (status, "error" in said) == (400, True), said
        assert (await ask(world, "POST", path, json=REQUESTS[name]))[0] == 200
        assert len(world.calls()) == 1


@pytest.mark.parametrize("name", sorted(DIALECTS))
async def test_what_is_too_large_or_comes_too_early_is_said_in_the_callers_dialect(make_world, name):
    path = path_of(name)
    async with make_world(
        lambda prompt: "hi", max_body_bytes=1000, faults=Faults(unavailable=10**6), engine_wait_limit=0.05
    ) as world:
        status, said = await ask(world, "POST", path, data=b" " * 2000)
        assert (status, "1000 bytes" in json.dumps(said)) == (413, True)
        async with world.http.post(world.url + path, json=REQUESTS[name], headers={"x-api-key": KEY}) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
            assert "error" in await response.json()


async def test_the_repeat_of_a_delivered_reply_is_known_by_its_header(make_world):
    async with make_world(["first", "second"]) as world:
        headers = {"x-stainless-retry-count": "1"}
        assert (await ask(world, "POST", "/v1/chat/completions", json=REQUESTS["chat"]))[0] == 200
        _, again = await ask(world, "POST", "/v1/chat/completions", json=REQUESTS["chat"], headers=headers)
        assert again["choices"][0]["message"]["content"] == "first"
        _, anew = await ask(
            world, "POST", "/v1/chat/completions", json=REQUESTS["chat"], headers={"x-stainless-retry-count": "0"}
        )
        assert anew["choices"][0]["message"]["content"] == "second"


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30])
async def test_a_number_beyond_64_bits_is_no_error_of_ours(make_world, number):
    async with make_world(lambda prompt: "hi") as world:
        tool = {"type": "function", "function": {"name": "f", "parameters": {"minimum": number}}}
        body = {**REQUESTS["chat"], "tools": [tool]}
        assert (await ask(world, "POST", "/v1/chat/completions", json=body))[0] in (200, 400)
        assert (await ask(world, "POST", "/v1/chat/completions", json=REQUESTS["chat"]))[0] == 200


async def test_a_body_that_cannot_be_unpacked_is_a_400_and_one_that_can_is_served(make_world):
    import gzip

    async with make_world(lambda prompt: "hi") as world:
        for data, wanted in [(b"no gzip", 400), (gzip.compress(json.dumps(REQUESTS["chat"]).encode()), 200)]:
            headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
            assert (await ask(world, "POST", "/v1/chat/completions", data=data, headers=headers))[0] == wanted


async def test_a_body_that_grows_beyond_the_limit_when_it_is_unpacked_is_refused(make_world):
    import gzip

    async with make_world(lambda prompt: "hi", max_body_bytes=10_000) as world:
        data = gzip.compress(b" " * 10_000_000)
        assert len(data) < 10_000 + 1
        status, _ = await ask(world, "POST", "/v1/chat/completions", data=data, headers={"Content-Encoding": "gzip"})
        assert status == 413
