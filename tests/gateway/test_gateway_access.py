"""Who may do what: keys, control key, hosts, routes."""

import json

import aiohttp
import pytest
from gateway_world import SECRET

from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import control_key, mint
from whippletree.gateway.server import Parts, serving

CHAT = {"messages": [{"role": "user", "content": "go"}]}
KEY = mint(SECRET, "r0", 1)


async def ask(world, method, path, *, key="", headers=None, **options):
    sent = {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
    async with world.http.request(method, world.url + path, headers=sent, **options) as response:
        body = await response.read()
        assert method == "HEAD" or response.content_type == "application/json"
        return response.status, json.loads(body) if body else None


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("", "no key was sent"),
        ("sk-made-up", "not a key of this gateway: it matches no rollout"),
        (KEY[:-3] + "AAA", "'r0', attempt 1 was not signed by this run: it does not match that rollout"),
        ("wt-" + "x" * 40 + ".y", "the key is damaged"),
        (mint(b"x" * 32, "r0", 1), "'r0', attempt 1 was not signed by this run"),
        (mint(SECRET, "r9", 1), "'r9' is not in this run's store"),
        (mint(SECRET, "r0", 7), "'r0' has no attempt 7"),
        (mint(SECRET, "'; DROP TABLE rollouts; --", 1), "not in this run's store"),
        (control_key(SECRET), "not a key of this gateway"),
    ],
)
async def test_a_model_route_needs_an_attempts_key(make_world, key, says):
    async with make_world(lambda prompt: "hi") as world:
        status, body = await ask(world, "POST", "/v1/chat/completions", key=key, json=CHAT)
        assert (status, body["error"]["type"], body["error"]["code"]) == (401, "authentication_error", "invalid_api_key")
        assert says in body["error"]["message"]
        assert not key or key not in json.dumps(body)
        assert (await ask(world, "POST", "/v1/chat/completions", key=KEY, json=CHAT))[0] == 200


CONTROL_ROUTES = [
    ("POST", "/control/hold"),
    ("POST", "/control/release"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/control/status"),
    ("POST", "/sessions"),
    ("GET", "/sessions/r0/rollout"),
    ("POST", "/control/attempts/r0/1/seal"),
]


async def test_control_routes_need_the_control_key(make_world):
    async with make_world(None) as world:
        for method, path in CONTROL_ROUTES:
            assert (await ask(world, method, path))[0] == 401
            assert (await ask(world, method, path, key="wtc-wrong"))[0] == 401
            assert (await ask(world, method, path, key=KEY))[0] == 403
            assert (await ask(world, method, path, key=control_key(SECRET)))[0] == 200
        for method, path in [("POST", "/sessions/r0/finish"), ("DELETE", "/sessions/r0")]:
            assert (await ask(world, method, path))[0] == 401
            assert (await ask(world, method, path, key=KEY))[0] == 403
        assert world.store.rollout("r0").state == "running"
        assert (await ask(world, "POST", f"/r/{KEY}/control/hold"))[0] == 403
        assert (await ask(world, "POST", f"/r/{control_key(SECRET)}/control/hold"))[0] == 404


async def test_an_attempts_key_on_a_control_route_leaves_bounded_evidence_on_its_rollout(make_world):
    async with make_world(None) as world:
        for _ in range(2):
            assert (await ask(world, "POST", "/sessions/r1/finish?reward=1", key=KEY, json={"reward": 1.0}))[0] == 403
        (event,) = world.store.events("r0")
        assert (event.kind, event.attempt, event.data) == (
            "forbidden_route",
            1,
            {"method": "POST", "path": "/sessions/r1/finish"},
        )
        for number in range(200):
            assert (await ask(world, "POST", f"/r/{KEY}/reward/{number}"))[0] == 403
        events = world.store.events("r0")
        assert len(events) == 32
        assert KEY not in str(events)
        parts = Parts(store=world.store, engines=[], renderer=world.renderer, secret=SECRET)
        async with serving(GatewayConfig(), parts) as port:  # a restarted gateway counts on
            sent = {"Authorization": f"Bearer {KEY}"}
            async with world.http.post(f"http://127.0.0.1:{port}/reward/new", headers=sent) as response:
                assert response.status == 403
        assert world.store.events("r0") == events
        assert (await ask(world, "POST", "/pause", key=mint(b"x" * 32, "r2", 1)))[0] == 403
        assert world.store.events("r1") == world.store.events("r2") == []  # nobody can put evidence on another's rollout
        assert world.store.rollout("r1").state == "running"


async def test_keys_that_open_nothing_are_counted(make_world):
    async with make_world(lambda prompt: "hi") as world:
        await ask(world, "POST", "/v1/chat/completions", key="intercepted", json=CHAT)
        await ask(world, "GET", "/control/status", key="wtc-wrong")
        await ask(world, "POST", "/v1/chat/completions", key=KEY, json=CHAT)
        assert (await world.control.status_async()).refused_keys == 2


async def test_a_key_may_come_in_every_way_that_sdks_know(make_world):
    async with make_world(lambda prompt: "hi") as world:
        for headers, path in [
            ({"Authorization": f"Bearer {KEY}"}, "/v1/models"),
            ({"x-api-key": KEY}, "/v1/models"),
            ({"x-goog-api-key": KEY}, "/v1/models"),
            ({}, f"/v1/models?key={KEY}"),
            ({}, f"/r/{KEY}/v1/models"),
            ({"Authorization": "Bearer placeholder", "x-api-key": KEY}, "/v1/models"),
            ({"Authorization": "Bearer intercepted"}, f"/r/{KEY}/v1/models"),
        ]:
            assert (await ask(world, "GET", path, headers=headers))[0] == 200, (headers, path)
        assert (await ask(world, "GET", "/v1/models", headers={"Authorization": f"Basic {KEY}"}))[0] == 401


async def test_no_key_is_in_any_log(make_world, caplog):
    caplog.set_level(0)
    async with make_world(lambda prompt: "hi") as world:
        world.store.calls = None  # something breaks inside
        for path in ("/v1/chat/completions", "/v1/nothing", "/control/hold", "/v1beta/models?key=" + KEY):
            await ask(world, "POST", f"/r/{KEY}{path}", key=KEY, json=CHAT)
        await ask(world, "GET", "/sessions/r0/rollout", key=control_key(SECRET))
        assert "failed" in caplog.text
        assert KEY not in caplog.text
        assert control_key(SECRET) not in caplog.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:1234"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "127.8.9.1"}, 200),
        ({"Host": "gateway.internal:80"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost@evil.example"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_foreign_hosts_and_pages_are_refused(make_world, headers, status):
    async with make_world(None, allowed_hosts=("gateway.internal",)) as world:
        assert (await ask(world, "GET", "/healthz", headers=headers))[0] == status


async def test_routes_besides_the_model(make_world):
    async with make_world(lambda prompt: "hi", model="tiny") as world:
        assert await ask(world, "GET", "/healthz") == (200, {"status": "ok"})
        assert (await ask(world, "HEAD", "/"))[0] == 200
        assert (await ask(world, "HEAD", f"/r/{KEY}/"))[0] == 200
        status, listed = await ask(world, "GET", f"/r/{KEY}/v1/models")
        assert (status, [model["id"] for model in listed["data"]]) == (200, ["tiny"])
        assert (await ask(world, "GET", "/v1/models/tiny", key=KEY))[1]["id"] == "tiny"
        assert (await ask(world, "GET", "/v1/models/gpt", key=KEY))[0] == 404
        assert (await ask(world, "GET", "/v1/models"))[0] == 401
        status, body = await ask(world, "POST", f"/r/{KEY}/v1/embeddings", json={})
        assert (status, body["error"]["code"]) == (404, "no_route")
        assert KEY not in json.dumps(body)
        assert (await ask(world, "GET", "/v1/chat/completions", key=KEY))[0] == 405


async def test_a_body_that_is_too_large_is_refused_in_the_dialects_form(make_world):
    async with make_world(None, max_body_bytes=1000) as world:
        status, body = await ask(world, "POST", "/v1/chat/completions", key=KEY, data=b"x" * 2000)
        assert status == 413
        assert "1000 bytes" in body["error"]["message"]


async def test_no_page_of_another_origin_may_read_an_answer(make_world):
    async with make_world(lambda prompt: "hi") as world:
        preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        for method, headers in [("OPTIONS", preflight), ("OPTIONS", {}), ("GET", {"Origin": "http://localhost:1"})]:
            sent = {"Authorization": f"Bearer {KEY}", **headers}
            async with world.http.request(method, world.url + "/v1/models", headers=sent) as response:
                assert not [name for name in response.headers if name.lower().startswith("access-control")]


async def test_a_foreign_host_is_refused_before_the_body_is_read(make_world):
    async with make_world(None) as world, aiohttp.ClientSession() as session:
        headers = {"Host": "evil.example", "Authorization": f"Bearer {KEY}"}
        async with session.post(world.url + "/v1/chat/completions", data=b"not json", headers=headers) as response:
            assert response.status == 403
