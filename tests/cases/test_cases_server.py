"""Cases of the gateway's HTTP side: keys, hosts, malformed requests, tampering."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import openai
import pytest
from gateway_world import SECRET
from route_parts import path_of

from whippletree import sandboxes
from whippletree.errors import ConfigurationError
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.keys import mint
from whippletree.gateway.server import Parts, serving
from whippletree.harnesses import load_harness
from whippletree.protocols import AttemptSpec, SandboxSpec

KEY = mint(SECRET, "r0", 1)


async def ask(world, method, path, key=KEY, headers=None, **options):
    sent = {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
    async with world.http.request(method, world.url + path, headers=sent, **options) as response:
        return response.status, json.loads(await response.read())


# Each dialect's way to write the case's three messages, the last of which is no message; and what names the third.
MALFORMED = {
    "chat": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, "oops"]},
    "messages": {
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, "oops"],
    },
    "responses": {"input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, "oops"]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "a"}]}, {"role": "model", "parts": [{"text": "b"}]}, "oops"]},
}
FIELD = {"chat": "messages", "messages": "messages", "responses": "input", "gemini": "contents"}


@pytest.mark.parametrize("name", sorted(DIALECTS))
async def test_A48_a_malformed_message_on_turn_two_is_a_400_that_names_it(make_world, name):
    path = path_of(name)
    field, body = FIELD[name], MALFORMED[name]
    async with make_world(lambda prompt: "b") as world:
        first = {**body, field: body[field][:1]}
        assert (await ask(world, "POST", path, json=first))[0] == 200
        before = world.calls()
        status, said = await ask(world, "POST", path, json=body)
        assert status == 400
        assert re.search(rf"{field}\W{{0,2}}2", json.dumps(said)), said
        repaired = {**body, field: [*body[field][:2], body[field][0]]}
        assert (await ask(world, "POST", path, json=repaired))[0] == 200
        one, two = world.calls()
        assert [one.call_id] == [call.call_id for call in before]
        assert (two.parent_call_id, two.prefix_break) == (one.call_id, "")


SEEN = """
import contextlib, os, pathlib
print(os.environ["OPENAI_API_KEY"])
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    with contextlib.suppress(OSError):  # it has ended
        print(path.read_bytes())
"""


async def test_F08_a_key_full_of_shell_reaches_the_agent_by_its_environment_only(tmp_path):
    api_key, model, mark = "k'; touch /tmp/pwned; echo '", "m$(id)", Path("/tmp/pwned")
    assert not mark.exists()
    harness = load_harness("mini-swe-agent")
    spec = AttemptSpec(
        rollout_id="r",
        attempt=1,
        instruction="x",
        base_url="http://127.0.0.1:1/v1",
        api_key=api_key,
        model=model,
        workdir="/app",
        output_dir=str(tmp_path),
        settings={"system_template": "x"},
    )
    plan = harness.plan(spec)
    assert not [word for word in plan.argv if api_key in word or model in word]
    assert not [text for _, text in plan.files if api_key in text]
    assert plan.environment["OPENAI_API_KEY"] == api_key
    config = sandboxes.SandboxConfig(kind="process", root=str(tmp_path / "boxes"))
    box = sandboxes.create(config, SandboxSpec(sandbox_id="f08"), gateway=("127.0.0.1", 9))
    try:
        await box.start()
        ended = await box.exec((sys.executable, "-c", SEEN), timeout=60, environment=plan.environment)
    finally:
        await box.stop()
    key, _, listed = ended.output.partition("\n")
    assert (ended.exit_code, key) == (0, api_key)
    assert "python" in listed
    assert "/tmp/pwned" not in listed
    assert not mark.exists()


# The agent's program inherits key and address: its call is served, labelled with its own client, and is no part of the main
# conversation, so that it is not trained unless roles of its kind are.
async def test_F09_a_call_of_a_program_that_the_agent_started_is_labelled_and_kept_apart(make_world):
    async with make_world(lambda prompt: "hi") as world:
        agent = {"User-Agent": "agent/1.0", "Authorization": f"Bearer {KEY}"}
        messages = [{"role": "user", "content": "do the task"}]
        status, reply = await world.chat(messages, headers=agent)
        assert status == 200
        async with openai.AsyncOpenAI(base_url=world.url + "/v1", api_key=KEY, max_retries=0) as sdk:
            await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        messages += [reply["choices"][0]["message"], {"role": "user", "content": "go on"}]
        assert (await world.chat(messages, headers=agent))[0] == 200
        first, foreign, last = world.calls()
        assert (first.role, foreign.role, last.role) == ("main", "side", "main")
        assert foreign.client.startswith("AsyncOpenAI")
        assert first.client == last.client == "agent/1.0"
        assert (last.parent_call_id, foreign.parent_call_id) == (first.call_id, "")


async def test_F10_other_machines_are_refused_unless_allowed_and_keys_are_asked_for_in_any_case(make_world):
    assert GatewayConfig().host == "127.0.0.1"
    async with make_world(lambda prompt: "hi") as world:
        parts = Parts(store=world.store, engines=[], renderer=world.renderer, secret=SECRET)
        with pytest.raises(ConfigurationError, match="allow_remote"):
            async with serving(GatewayConfig(host="0.0.0.0"), parts):
                pytest.fail("it listens to everybody")
        async with serving(GatewayConfig(host="0.0.0.0", allow_remote=True), parts) as port:
            body = {"messages": [{"role": "user", "content": "go"}]}
            for path in ("/v1/chat/completions", "/v1/models", "/control/status"):
                method = "POST" if "chat" in path else "GET"
                async with world.http.request(method, f"http://127.0.0.1:{port}{path}", json=body) as response:
                    assert response.status == 401


async def test_F11_a_key_that_the_harness_replaced_is_a_401_that_says_so_and_is_counted(make_world):
    async with make_world(lambda prompt: "hi") as world:
        body = {"messages": [{"role": "user", "content": "go"}]}
        status, said = await ask(world, "POST", "/v1/chat/completions", key="intercepted", json=body)
        text = said["error"]["message"]
        assert status == 401
        assert "matches no rollout" in text and "replaced the key" in text
        assert "intercepted" not in text
        status, said = await ask(world, "POST", "/v1/chat/completions", key=KEY[:-4] + "AAAA", json=body)
        assert (status, "'r0', attempt 1" in said["error"]["message"]) == (401, True)
        assert "does not match that rollout" in said["error"]["message"]
        # the controller sees at the first rollout that keys are refused
        assert (await world.control.status_async()).refused_keys == 2
        # where the address carries the key, a replaced one does no harm
        assert (await ask(world, "POST", f"/r/{KEY}/v1/chat/completions", key="intercepted", json=body))[0] == 200


async def test_F12_an_attempts_key_opens_model_calls_of_its_rollout_only_and_every_try_is_on_record(make_world):
    async with make_world(lambda prompt: "hi") as world:
        tries = [
            ("POST", "/rollout/r1/v1/tools/reset", None),
            ("POST", "/api/rollouts/r1/reward", {"reward": 1}),
            ("GET", "/api/rollouts/r2", None),
            ("GET", "/sessions/r2/rollout", None),
            ("POST", "/sessions/r0/finish", {"reward": 1}),
            ("POST", "/control/attempts/r1/1/seal", None),
        ]
        for method, path, body in tries:
            assert (await ask(world, method, path, json=body))[0] == 403, path
            assert (await ask(world, method, f"/r/{KEY}{path}", key="", json=body))[0] == 403, path
        recorded = {(event.data["method"], event.data["path"]) for event in world.store.events("r0")}
        assert recorded >= {(method, path) for method, path, _ in tries}
        assert all(event.kind == "forbidden_route" for event in world.store.events("r0"))
        assert [world.store.rollout(name).state for name in ("r0", "r1", "r2")] == ["running"] * 3
        assert world.store.events("r1") == world.store.events("r2") == []


async def test_F13_a_foreign_page_can_neither_drive_the_gateway_nor_read_from_it(make_world):
    async with make_world(lambda prompt: "hi") as world:
        for path in ("/v1/responses", "/v1/chat/completions", "/v1/models", "/control/status", "/healthz", "/sessions"):
            for headers in (
                {"Host": "evil.example:8000", "Origin": "https://evil.example"},
                {"Host": "evil.example:8000"},
                {"Origin": "https://evil.example"},
            ):
                async with world.http.post(world.url + path, headers={"Authorization": f"Bearer {KEY}", **headers}) as response:
                    assert response.status == 403
                    assert "Access-Control-Allow-Origin" not in response.headers
        assert world.calls() == []
