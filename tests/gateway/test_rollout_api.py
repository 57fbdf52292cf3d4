"""The rollout API over HTTP, on a real store and gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from gateway_world import SECRET

from whippletree.engines.scripted import Faults
from whippletree.gateway.keys import control_key, mint
from whippletree.gateway.rollout_api.operations import OPERATIONS
from whippletree.types import CauseClass

KEY = {"Authorization": f"Bearer {control_key(SECRET)}"}


async def ask(world: Any, method: str, path: str, body: Any = None, *, headers: Any = KEY) -> tuple[int, Any]:
    async with world.http.request(method, world.url + path, json=body, headers=headers) as response:
        return response.status, await response.json()


async def create(world: Any, *names: str, **fields: Any) -> None:
    status, _ = await ask(world, "POST", "/api/rollouts", {"rollouts": [{"rollout_id": name, **fields} for name in names]})
    assert status == 200


async def test_a_rollout_from_its_creation_to_its_reward(make_world: Callable[..., Any]) -> None:
    """As the paper's trainer, controller and agent do it, with every call made twice."""
    async with make_world(["the answer<|im_end|>"] * 4) as world:
        draft = {
            "rollout_id": "q1",
            "group_id": "g",
            "source": "search",
            "input": {"question": "Who?"},
            "labels": {"depth": "1"},
        }
        for _ in range(2):
            status, made = await ask(world, "POST", "/api/rollouts", {"rollouts": [draft]})
            assert status == 200
            (rollout,) = made["rollouts"]
            assert (rollout["rollout_id"], rollout["status"], rollout["attempt"]) == ("q1", "queuing", 0)
            assert (rollout["input"], rollout["labels"]) == ({"question": "Who?"}, {"depth": "1"})
        for _ in range(2):
            status, begun = await ask(world, "PATCH", "/api/rollouts/q1", {"status": "running"})
            assert (status, begun["status"], begun["attempt"]) == (200, "running", 1)
        path = "/proxy/rollout/q1/attempt/1/mode/train/openai/v1/chat/completions"
        messages = {"model": "policy", "messages": [{"role": "user", "content": "Who?"}]}
        status, _ = await ask(world, "POST", path, messages, headers={"Authorization": f"Bearer {mint(SECRET, 'q1', 1)}"})
        assert status == 200
        assert len(world.calls("q1")) == 1
        event = {"kind": "reward", "event_id": "final", "data": {"reward": 0.5, "scores": {"exact": 1.0}}}
        for _ in range(2):
            status, receipt = await ask(world, "POST", "/api/rollouts/q1/attempt/1/events", event)
            assert (status, receipt) == (200, {"event_id": "q1/1/final"})
        for _ in range(2):
            status, ended = await ask(world, "PATCH", "/api/rollouts/q1", {"status": "succeeded", "attempt": 1})
            assert (status, ended["status"], ended["reward"]) == (200, "succeeded", 0.5)
        status, events = await ask(world, "GET", "/api/rollouts/q1/events?kind=reward")
        assert [item["data"]["reward"] for item in events["events"]] == [0.5]
        assert world.store.attempts("q1")[0].result.scores == {"exact": 1.0}
        status, refused = await ask(world, "POST", path, messages, headers={"Authorization": f"Bearer {mint(SECRET, 'q1', 1)}"})
        assert (status, refused["error"]["code"]) == (403, "sealed")


async def test_transitions_that_are_none_are_refused_with_the_reason(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await create(world, "a", "b")
        status, refused = await ask(world, "PATCH", "/api/rollouts/a", {"status": "succeeded", "reward": 1.0})
        assert (status, refused["error"]["code"]) == (409, "fenced")
        assert "waits for its next attempt" in refused["error"]["message"]
        await ask(world, "PATCH", "/api/rollouts/a", {"status": "running"})
        status, refused = await ask(world, "PATCH", "/api/rollouts/a", {"status": "succeeded"})
        assert (status, refused["error"]["code"]) == (409, "no_reward")
        await ask(world, "PATCH", "/api/rollouts/a", {"status": "succeeded", "reward": 1.0})
        for update, said in (
            ({"status": "running"}, "from succeeded to running"),
            ({"status": "failed"}, "from succeeded to failed"),
            ({"status": "queuing"}, "from succeeded to queuing"),
            ({"status": "succeeded", "reward": 0.0}, "has reward 1.0, not 0.0"),
        ):
            status, refused = await ask(world, "PATCH", "/api/rollouts/a", update)
            assert (status, refused["error"]["code"]) == (409, "conflict"), update
            assert said in refused["error"]["message"]
        status, same = await ask(world, "PATCH", "/api/rollouts/b", {"status": "queuing"})
        assert (status, same["status"]) == (200, "queuing")
        assert world.store.rollout("a").reward == 1.0


async def test_what_an_older_attempt_says_changes_nothing(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await create(world, "a")
        await ask(world, "PATCH", "/api/rollouts/a", {"status": "running"})
        failed = {"status": "queuing", "attempt": 1, "cause": "host_lost", "message": "the node went away"}
        for _ in range(2):
            status, again = await ask(world, "PATCH", "/api/rollouts/a", failed)
            assert (status, again["status"], again["attempt"]) == (200, "queuing", 1)
        status, begun = await ask(world, "PATCH", "/api/rollouts/a", {"status": "running"})
        assert begun["attempt"] == 2
        for method, path, body in (
            ("PATCH", "/api/rollouts/a", {"status": "succeeded", "attempt": 1, "reward": 1.0}),
            ("PATCH", "/api/rollouts/a", {"status": "failed", "attempt": 1}),
            ("PATCH", "/api/rollouts/a", {"status": "running", "attempt": 1}),
            ("POST", "/api/rollouts/a/attempt/1/events", {"kind": "reward", "data": {"reward": 1.0}}),
        ):
            status, refused = await ask(world, method, path, body)
            assert (status, refused["error"]["code"]) == (409, "fenced"), body
        rollout = world.store.rollout("a")
        assert (rollout.state, rollout.attempt, rollout.reward) == ("running", 2, None)
        assert world.store.events("a") == []
        assert world.store.attempts("a")[0].cause.cause is CauseClass.HOST_LOST


async def test_two_controllers_never_run_the_same_attempt(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await create(world, "a")
        begin = [ask(world, "PATCH", "/api/rollouts/a", {"status": "running", "worker": f"node-{n}"}) for n in range(8)]
        statuses = sorted(status for status, _ in await asyncio.gather(*begin))
        assert statuses == [200] + [409] * 7
        assert len(world.store.attempts("a")) == 1


async def test_a_failure_has_no_reward_and_a_reward_is_a_finite_number(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await create(world, "a")
        await ask(world, "PATCH", "/api/rollouts/a", {"status": "running"})
        assert (await ask(world, "PATCH", "/api/rollouts/a", {"status": "failed", "reward": 0.0}))[0] == 400
        for data in ({}, {"reward": "high"}, {"reward": None}, {"reward": 1.0, "scores": {"a": "b"}}):
            status, _ = await ask(world, "POST", "/api/rollouts/a/attempt/1/events", {"kind": "reward", "data": data})
            assert status == 400, data
        async with world.http.patch(
            world.url + "/api/rollouts/a", data=b'{"status": "succeeded", "reward": 1e999}', headers=KEY
        ) as response:
            assert response.status == 400
        status, ended = await ask(
            world, "PATCH", "/api/rollouts/a", {"status": "failed", "cause": "verifier", "message": "died"}
        )
        assert (ended["status"], ended["reward"], ended["cause"]["cause"]) == ("failed", None, "verifier")


async def test_the_last_reward_event_of_the_attempt_counts(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await create(world, "a")
        await ask(world, "PATCH", "/api/rollouts/a", {"status": "running"})
        for number, reward in enumerate((0.1, 0.9, 0.4)):
            event = {"kind": "reward", "event_id": f"e{number}", "data": {"reward": reward}}
            await ask(world, "POST", "/api/rollouts/a/attempt/1/events", event)
        status, ended = await ask(world, "PATCH", "/api/rollouts/a", {"status": "succeeded"})
        assert (status, ended["reward"]) == (200, 0.4)


async def test_the_same_event_id_of_two_rollouts_are_two_events(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await create(world, "a", "b")
        for name in "ab":
            await ask(world, "PATCH", f"/api/rollouts/{name}", {"status": "running"})
            event = {"kind": "note", "event_id": "same", "data": {"of": name}}
            assert (await ask(world, "POST", f"/api/rollouts/{name}/attempt/1/events", event))[0] == 200
        assert [world.store.events(name)[0].data for name in "ab"] == [{"of": "a"}, {"of": "b"}]


async def test_calls_are_read_as_model_request_events(make_world: Callable[..., Any]) -> None:
    async with make_world(["one", "two", "three"]) as world:
        messages = [{"role": "user", "content": "?"}]
        for answer in ("one", "two"):
            assert (await world.chat(messages))[0] == 200
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "go on"}]
        _, first = await ask(world, "GET", "/api/rollouts/r0/events?kind=model_request&limit=1")
        assert (len(first["events"]), first["next"], first["more"]) == (1, 1, True), first
        _, rest = await ask(world, "GET", f"/api/rollouts/r0/events?kind=model_request&after={first['next']}")
        (event,) = rest["events"]
        call = world.calls()[1]
        assert (event["event_id"], event["kind"], event["attempt"]) == (call.call_id, "model_request", 1)
        assert event["data"]["prompt_token_ids"] == world.prompt_ids(call)
        assert world.renderer.decode(event["data"]["response_token_ids"]) == "two<|im_end|>"
        assert len(event["data"]["logprobs"]) == len(event["data"]["response_token_ids"]) == call.sampled_tokens
        assert event["data"]["parent"] == world.calls()[0].call_id
        status, _ = await ask(world, "POST", "/api/rollouts/r0/attempt/1/events", {"kind": "model_request"})
        assert status == 400
        assert (await ask(world, "GET", "/api/rollouts/r0/events"))[1]["events"] == []
        await asyncio.to_thread(world.store.release, ["r0"])
        status, gone = await ask(world, "GET", "/api/rollouts/r0/events?kind=model_request")
        assert (status, gone["error"]["code"]) == (410, "released")


async def test_pages_filters_and_cursors(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await create(world, *(f"s-{n}" for n in range(5)), source="one")
        await create(world, "t-0", source="two", purpose="eval")
        found, after = [], ""
        while True:
            status, page = await ask(world, "GET", f"/api/rollouts?source=one&limit=2&after={after}")
            assert status == 200
            found += [rollout["rollout_id"] for rollout in page["rollouts"]]
            after = page["next"]
            if not page["more"]:
                break
        assert found == [f"s-{n}" for n in range(5)]
        await ask(world, "PATCH", "/api/rollouts/s-3", {"status": "running"})
        status, page = await ask(world, "GET", "/api/rollouts?state=running&state=failed&source=one")
        assert [rollout["rollout_id"] for rollout in page["rollouts"]] == ["s-3"]
        status, page = await ask(world, "GET", "/api/rollouts?purpose=eval")
        assert [rollout["rollout_id"] for rollout in page["rollouts"]] == ["t-0"]
        for query in ("limit=0", "limit=x", "after=zzz", "state=done", "order=random", "wait=61", "wait=x", "purpose=test"):
            status, _ = await ask(world, "GET", f"/api/rollouts?{query}")
            assert status == 400, query


async def test_a_listing_waits_for_what_ends(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await create(world, "a", "b")
        for name in "ab":
            await ask(world, "PATCH", f"/api/rollouts/{name}", {"status": "running"})
        query = "/api/rollouts?state=succeeded&state=failed&order=updated&source=api&wait="
        assert (await ask(world, "GET", query + "0.05"))[1]["rollouts"] == []
        waiting = asyncio.create_task(ask(world, "GET", query + "30"))
        one = asyncio.create_task(ask(world, "GET", "/api/rollouts/b?wait=30"))
        await asyncio.sleep(0.1)
        assert not waiting.done() and not one.done()
        await ask(world, "PATCH", "/api/rollouts/b", {"status": "succeeded", "reward": 1.0})
        _, page = await asyncio.wait_for(waiting, 60)
        assert [rollout["rollout_id"] for rollout in page["rollouts"]] == ["b"]
        assert (await asyncio.wait_for(one, 60))[1]["status"] == "succeeded"
        later = asyncio.create_task(ask(world, "GET", f"{query}30&after={page['next']}"))
        await ask(world, "PATCH", "/api/rollouts/a", {"status": "failed"})
        assert [rollout["rollout_id"] for rollout in (await asyncio.wait_for(later, 60))[1]["rollouts"]] == ["a"]


async def test_D04_a_group_of_which_few_have_begun_is_called_off_whole(make_world: Callable[..., Any]) -> None:
    """Eight rollouts, three begun: after the cancel none is left that could begin, and the group is as large as it will be."""
    async with make_world() as world:
        names = [f"m{n}" for n in range(8)]
        await create(world, *names, group_id="g7")
        await create(world, "other")
        for name in names[:3]:
            await ask(world, "PATCH", f"/api/rollouts/{name}", {"status": "running"})
        await ask(world, "PATCH", "/api/rollouts/m0", {"status": "succeeded", "reward": 1.0})
        for _ in range(2):
            status, page = await ask(world, "POST", "/api/rollouts/cancel", {"group_id": "g7", "reason": "stale"})
            assert status == 200
            assert [rollout["status"] for rollout in page["rollouts"]] == ["succeeded"] + ["failed"] * 7
        assert all(world.store.rollout(name).terminal for name in names)
        assert world.store.rollout("m5").cause.message == "stale"
        assert world.store.rollout("other").state == "queuing"
        status, refused = await ask(world, "PATCH", "/api/rollouts/m1", {"status": "succeeded", "attempt": 1, "reward": 1.0})
        assert (status, refused["error"]["code"]) == (409, "fenced")
        assert (await ask(world, "PATCH", "/api/rollouts/m1", {"status": "failed", "attempt": 1}))[0] == 200  # it has failed
        assert (await ask(world, "POST", "/api/rollouts/cancel", {"rollout_ids": ["nobody"]}))[0] == 404


@pytest.mark.parametrize("where", ["api", "store"])
async def test_cancelling_ends_the_call_that_is_under_way(make_world: Callable[..., Any], where: str) -> None:
    async with make_world(faults=Faults(first_token_seconds=60.0)) as world:
        calling = asyncio.create_task(world.chat([{"role": "user", "content": "?"}]))
        while not world.engines[0]._running:
            await asyncio.sleep(0.01)
        if where == "api":
            await ask(world, "POST", "/api/rollouts/cancel", {"rollout_ids": ["r0"]})
        else:
            await asyncio.wrap_future(world.store.cancel(["r0"], "elsewhere"))
        status, refused = await asyncio.wait_for(calling, 40)
        assert (status, refused["error"]["code"]) == (403, "sealed")
        assert not world.engines[0]._running


async def test_the_queue_is_shown_paused_and_resumed(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await create(world, "a", "b", source="fresh", task_path="/tasks/t")
        for _ in range(2):
            status, state = await ask(world, "POST", "/api/queue/pause")
            assert (status, state["paused"]) == (200, True)
        assert await asyncio.wrap_future(world.store.claim("w", 5)) == []
        status, state = await ask(world, "POST", "/api/queue/resume")
        assert state["paused"] is False
        await asyncio.wrap_future(world.store.claim("w", 1))
        status, state = await ask(world, "GET", "/api/queue")
        counts = {(count["source"], count["state"]): count["count"] for count in state["counts"]}
        assert (counts[("fresh", "queuing")], counts[("fresh", "running")]) == (1, 1)


async def test_creation_is_all_or_none(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await create(world, "a", harness="x")
        drafts = [{"rollout_id": "b"}, {"rollout_id": "a", "harness": "y"}]
        status, refused = await ask(world, "POST", "/api/rollouts", {"rollouts": drafts})
        assert (status, refused["error"]["code"]) == (409, "conflict")
        assert (await ask(world, "GET", "/api/rollouts/b"))[0] == 404
        for body in (
            {"rollouts": [{"rollout_id": "x" * 201}]},
            {"rollouts": {}},
            {"rollout": []},
            [],
            {"rollouts": [{"a": 1}]},
        ):
            assert (await ask(world, "POST", "/api/rollouts", body))[0] == 400, body


@pytest.mark.parametrize("key", ["", "attempt", "wrong"])
async def test_every_route_needs_the_control_key(make_world: Callable[..., Any], key: str) -> None:
    headers = {"": {}, "attempt": {"Authorization": f"Bearer {mint(SECRET, 'r0', 1)}"}, "wrong": {"x-api-key": "nothing"}}[key]
    async with make_world() as world:
        for operation in OPERATIONS:
            path = operation.path.format(rollout_id="r0", attempt=1)
            status, _ = await ask(world, operation.method, path, {}, headers=headers)
            assert status == (403 if key == "attempt" else 401), path
        status, document = await ask(world, "GET", "/api/openapi.json", headers={})
        assert (status, document["openapi"]) == (200, "3.1.0")
        assert world.store.rollout("r0").state == "running"


async def test_the_proxy_path_and_the_key_must_agree(make_world: Callable[..., Any]) -> None:
    body = {"model": "policy", "messages": [{"role": "user", "content": "?"}]}
    async with make_world() as world:
        path = "/proxy/rollout/{}/attempt/{}/mode/train/openai/v1/chat/completions"
        good = {"Authorization": f"Bearer {mint(SECRET, 'r0', 1)}"}
        assert (await ask(world, "POST", path.format("r0", 1), body, headers=good))[0] == 200
        assert (await ask(world, "POST", path.format("r1", 1), body, headers=good))[0] == 403
        assert (await ask(world, "POST", path.format("r0", 2), body, headers=good))[0] == 403
        assert (await ask(world, "POST", path.format("r0", "x"), body, headers=good))[0] == 404
        assert (await ask(world, "POST", path.format("r0", 1), body, headers={}))[0] == 401
        messages = "/proxy/rollout/r0/attempt/1/mode/val/anthropic/v1/messages"
        status, reply = await ask(world, "POST", messages, {**body, "max_tokens": 5}, headers=good)
        assert (status, reply["type"]) == (200, "message")
        assert len(world.calls("r0")) == 2


async def test_an_open_proxy_takes_the_attempt_from_the_path(make_world: Callable[..., Any]) -> None:
    """For agents that hold no key: their calls and events count, everything else still needs the control key."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "?"}]}
    async with make_world(open_proxy=True) as world:
        path = "/proxy/rollout/r1/attempt/1/mode/train/openai/v1/chat/completions"
        for headers in ({}, {"Authorization": "Bearer dummy"}):
            assert (await ask(world, "POST", path, body, headers=headers))[0] == 200
        assert len(world.calls("r1")) >= 1
        event = {"kind": "reward", "data": {"reward": 1.0}}
        assert (await ask(world, "POST", "/api/rollouts/r1/attempt/1/events", event, headers={}))[0] == 200
        assert (await ask(world, "PATCH", "/api/rollouts/r1", {"status": "succeeded"}, headers={}))[0] == 401
        assert (await ask(world, "POST", "/v1/chat/completions", body, headers={}))[0] == 401
