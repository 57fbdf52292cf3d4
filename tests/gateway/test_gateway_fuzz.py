"""Whatever is sent to any route: no answer of 500 or more, always JSON (or the stream that was asked for), and life goes on."""

import asyncio
import gzip
import http.client
import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from gateway_world import SECRET
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from route_parts import filled

from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.keys import control_key, mint
from whippletree.types import Sampling

KEY = mint(SECRET, "r0", 1)
KEYS = [KEY, KEY, KEY, "", "intercepted", KEY[:-1], mint(SECRET, "gone", 1), "wt-", "wt-.", "wt-W10.x", "wtc-x", "é", "a b"]
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"]
ODD_PATHS = [
    *(
        "/",
        "//",
        "/v1",
        "/r",
        "/r/",
        "/v1/chat",
        "/api/show",
        "/api/v1/models",
        "/metrics",
        "/%00",
        "/%ff",
        "/..%2f..",
        "/v1/models/%ff",
    ),
    *("/v1/models", "/v1/models/x", "/v1beta/models", "/v1beta/models/x", "/v1/responses", "/v1/responses/resp_x", "/healthz"),
    *(
        "/v1/responses/x/cancel",
        "/rollout/r1/v1/tools/reset",
        "/v1/embeddings",
        "/v1beta/models/x:nothing",
        "/v1/models/m:generateContent",
    ),
]
CONTROL_PATHS = [
    *("/control/status", "/control/release", "/resume", "/sessions", "/sessions/r1/rollout", "/sessions/nobody/rollout"),
    *("/sessions/r1/finish", "/sessions/nobody/finish", "/sessions/%2e%2e/rollout", "/control/attempts/r1/x/seal"),
    *("/control/attempts/nobody/1/seal", "/control/hold", "/pause"),
]
PATTERNS = [path for dialect in DIALECTS.values() for path in (*dialect.generate_paths, *dialect.count_paths)]
LIMITS = settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

plain = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=12)),
    st.sampled_from(
        ["user", "assistant", "function", "tool", "auto", "text", "type", "json_schema", "\x00", "call_1", -1, 10**30]
    ),
)
names = st.one_of(
    st.text(max_size=8), st.sampled_from(["role", "content", "type", "text", "name", "id", "input", "parts", "tools"])
)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)
queries = st.lists(
    st.tuples(
        st.sampled_from(["limit", "settle", "samples", "format", "abort", "key", "alt", "beta", "x"]),
        st.one_of(st.sampled_from(["", "0", "1", "-1", "nan", "sse", "msgpack", "1e99"]), st.text(max_size=6)),
    ),
    max_size=3,
)
headers = st.dictionaries(
    st.sampled_from(
        [
            *("anthropic-version", "x-stainless-retry-count", "Content-Type", "Accept", "x-codex-turn-metadata", "User-Agent"),
            *("x-claude-code-session-id", "x-session-id", "Content-Encoding", "Expect", "Origin", "Cookie", "Upgrade", "Range"),
        ]
    ),
    st.one_of(
        st.sampled_from(
            ["gzip", "deflate", "websocket", "application/json; charset=utf-7", "1", "{", '{"request_kind": 3}', "*"]
        ),
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12),
    ),
    max_size=3,
)


def recorded():
    """Path and body of recorded requests, a few of each recording."""
    found = []
    for file in sorted((Path(__file__).parent / "recordings").glob("*.jsonl.gz")):
        with gzip.open(file, "rt") as lines:
            requests = [json.loads(line) for line in lines]
        posts = [request for request in requests if request.get("method", "POST") == "POST" and request.get("body")]
        found += [(request["path"], request["body"]) for request in (posts[:1] + posts[-1:])]
    return [(path, body) for path, body in found if len(json.dumps(body)) < 60_000]


RECORDED = recorded()


@st.composite
def mutated(draw):
    """A recorded request with one place replaced by anything, or cut off, or with other bytes in it."""
    path, body = draw(st.sampled_from(RECORDED))
    body = json.loads(json.dumps(body))
    how = draw(st.sampled_from(["place", "place", "place", "cut", "bytes"]))
    if how == "place":
        node = body
        for _ in range(draw(st.integers(0, 6))):
            keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
            inner = [key for key in keys if isinstance(node[key], dict | list) and node[key]]
            if not inner:
                break
            node = node[draw(st.sampled_from(inner))]
        places = list(node) if isinstance(node, dict) else list(range(len(node)))
        if places:
            node[draw(st.sampled_from(places))] = draw(values)
        return path, json.dumps(body).encode()
    data = json.dumps(body, ensure_ascii=False).encode()
    start = draw(st.integers(0, len(data)))
    return path, data[:start] if how == "cut" else data[:start] + draw(st.binary(max_size=4)) + data[start + 1 :]


class Caller:
    """A client without opinions of its own."""

    def __init__(self, world):
        self.world = world

    def send(self, method, path, body, sent):
        """Status, content type and body of the answer. Raises what http.client raises."""
        connection = http.client.HTTPConnection("127.0.0.1", self.world.port, timeout=30)
        try:
            connection.putrequest(method, path)
            for name, value in sent.items():
                connection.putheader(name, value.encode("utf-8"))
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            return response.status, response.headers.get_content_type(), response.read()
        finally:
            connection.close()

    def check(self, method, path, body, sent):
        status, form, answer = self.send(method, path, body, sent)
        assert status < 500, (method, path, status, answer[:500])
        assert KEY not in answer.decode("utf-8", "replace")
        if method == "HEAD" or not answer:
            return
        if form == "text/plain":  # the server library's own, before or after there is a request
            assert status == 417 or (status == 400 and "Content-Encoding" in sent)
            return
        assert form in ("application/json", "text/event-stream", "application/msgpack"), (
            method,
            path,
            status,
            form,
            answer[:200],
        )
        if form == "application/json":
            said = json.loads(answer)
            assert status < 400 or "error" in said or said.get("type") == "error"


def fuzz(world, strategy, key_of, control=False):
    """Send what `strategy` draws: (path, body), with drawn method, key, query and headers."""
    caller = Caller(world)

    @LIMITS
    @given(
        strategy,
        st.sampled_from(METHODS + ["POST"] * 6),
        key_of,
        queries,
        headers,
        st.sampled_from(["bearer", "path", "x-api-key"]),
    )
    def run(asked, method, key, query, more, way):
        path, body = asked
        path = ("/r/" + quote(key, safe="") if way == "path" and not control else "") + path
        if query:
            path += "?" + "&".join(f"{name}={quote(value)}" for name, value in query)
        sent = {
            **more,
            **({"Authorization": f"Bearer {key}"} if way == "bearer" else {"x-api-key": key} if way != "path" else {}),
        }
        caller.check(method, path, body, sent)
        if control:
            world.control.release()

    run()


async def stays_usable(world):
    status, reply = await world.chat([{"role": "user", "content": "still there?"}])
    assert status == 200, reply
    assert (await world.control.rollout_async("r0", samples=True)).problem == ""


@pytest.mark.timeout(300)
async def test_random_bodies_on_random_paths(make_world):
    async with make_world(None, sampling=Sampling(max_tokens=4, seed=1)) as world:
        paths = st.sampled_from([*map(filled, PATTERNS), *ODD_PATHS, *CONTROL_PATHS])
        bodies = st.one_of(st.binary(max_size=60), values.map(lambda value: json.dumps(value).encode()))
        await asyncio.to_thread(fuzz, world, st.tuples(paths, bodies), st.sampled_from(KEYS))
        await stays_usable(world)


@pytest.mark.timeout(300)
async def test_mutated_recordings(make_world):
    async with make_world(None, sampling=Sampling(max_tokens=4, seed=1), context=40_000) as world:
        await asyncio.to_thread(fuzz, world, mutated(), st.just(KEY))
        await stays_usable(world)


@pytest.mark.timeout(300)
async def test_control_routes_with_the_control_key(make_world):
    async with make_world(None, sampling=Sampling(max_tokens=4, seed=1), drain_limit=0.1) as world:
        bodies = st.one_of(
            st.binary(max_size=40),
            values.map(lambda value: json.dumps(value).encode()),
            st.fixed_dictionaries(
                {},
                optional=dict.fromkeys(
                    ("session_id", "reward", "error", "labels", "sampling", "scores", "task_id", "cause"), values
                ),
            ).map(lambda value: json.dumps(value).encode()),
        )
        key = st.just(control_key(SECRET))
        await asyncio.to_thread(fuzz, world, st.tuples(st.sampled_from(CONTROL_PATHS), bodies), key, True)
        await stays_usable(world)


RAW = [
    b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + KEY.encode() + b"\x00\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization Bearer " + KEY.encode() + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


async def test_what_is_no_request_at_all(make_world, caplog):
    async with make_world(lambda prompt: "hi") as world:
        for data in RAW:
            reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(data)
            await writer.drain()
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), 60)
            writer.close()
            status = re.match(rb"HTTP/1\.[01] (\d+)", answer)
            assert not answer or (status and int(status[1]) < 500), (data[:60], answer[:200])
        assert "no HTTP that is served" in caplog.text
        assert KEY not in caplog.text
        await stays_usable(world)
