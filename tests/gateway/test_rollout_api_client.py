"""The typed client of the rollout API, against a real gateway and against one whose answers are lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from gateway_world import SECRET

from whippletree.errors import RequestError
from whippletree.gateway.keys import control_key
from whippletree.gateway.rollout_api.client import RolloutClient
from whippletree.gateway.rollout_api.wire import RolloutDraft
from whippletree.types import CauseClass


async def test_a_trainer_and_a_controller_elsewhere(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        client = RolloutClient(world.url, control_key(SECRET))

        def controller() -> None:
            for rollout in list(client.pages(states=["queuing"], source="far", limit=1)):
                begun = client.begin(rollout.rollout_id, "node-1")
                if rollout.input["good"]:
                    client.event(rollout.rollout_id, begun.attempt, "reward", {"reward": 1.0})
                    client.succeed(rollout.rollout_id, begun.attempt)
                else:
                    client.fail(rollout.rollout_id, begun.attempt, "no luck", CauseClass.SANDBOX, again=True)
                    client.fail(rollout.rollout_id, client.begin(rollout.rollout_id, "node-1").attempt, "no luck again")

        def trainer() -> list[tuple[str, str, float | None, int]]:
            made = client.create([RolloutDraft(source="far", group_id="g", input={"good": n % 2 == 0}) for n in range(5)])
            assert len({rollout.rollout_id for rollout in made}) == 5
            controller()
            found = []
            for rollout, _ in client.ended(seconds=0.05, source="far"):
                found.append(rollout)
                time.sleep(0.1)  # longer than it waits for another: that one has ended all the same
            assert [rollout.rollout_id for rollout in found] == [rollout.rollout_id for rollout in made]
            assert client.wait(made[0].rollout_id, 5.0).status == "succeeded"
            assert client.get(made[1].rollout_id).cause.message == "no luck again"  # type: ignore[union-attr]
            assert client.events(made[0].rollout_id, kind="reward").events[0].data == {"reward": 1.0}
            return [(rollout.status, rollout.source, rollout.reward, rollout.attempt) for rollout in found]

        ended = await asyncio.to_thread(trainer)
        assert ended == [("succeeded", "far", 1.0, 1), ("failed", "far", None, 2)] * 2 + [("succeeded", "far", 1.0, 1)]


async def test_waiting_ends_with_its_time(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        client = RolloutClient(world.url, control_key(SECRET))
        (rollout,) = await asyncio.to_thread(client.create, [RolloutDraft()])
        assert (await asyncio.to_thread(client.wait, rollout.rollout_id, 0.1)).status == "queuing"
        for seconds in (0.0, 0.1):
            assert await asyncio.to_thread(lambda: list(client.ended(seconds=seconds, source="nobody"))) == []  # noqa: B023


async def test_queue_and_cancel(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        client = RolloutClient(world.url, control_key(SECRET))
        assert (await asyncio.to_thread(client.pause)).paused
        assert (await asyncio.to_thread(client.queue)).paused
        assert not (await asyncio.to_thread(client.resume)).paused
        drafts = [RolloutDraft(rollout_id=f"x/{n} é", group_id="mine") for n in range(3)]  # ids that are no plain path
        await asyncio.to_thread(client.create, drafts)
        assert (await asyncio.to_thread(client.get, "x/1 é")).group_id == "mine"
        ended = await asyncio.to_thread(lambda: client.cancel(["x/0 é"], group_id="mine", reason="enough"))
        assert [(rollout.status, rollout.cause.message) for rollout in ended if rollout.cause] == [("failed", "enough")] * 3


async def test_what_is_refused_says_why(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        client = RolloutClient(world.url, control_key(SECRET), patience=0.2)
        for work, status, code in (
            (lambda: client.get("nobody"), 404, "not_found"),
            (lambda: client.succeed("r0", 7, 1.0), 409, "fenced"),
            (lambda: client.begin("r0", "other"), 409, "conflict"),
            (lambda: RolloutClient(world.url, "wrong").queue(), 401, "invalid_api_key"),
        ):
            with pytest.raises(RequestError) as caught:
                await asyncio.to_thread(work)
            assert (caught.value.status, caught.value.code) == (status, code)


async def test_an_answer_that_was_lost_changes_nothing(make_world: Callable[..., Any]) -> None:
    """Between the client and the gateway sits a relay that loses the answer to each first try of a request."""
    async with make_world() as world:
        tries: dict[tuple[str, str, bytes], int] = {}

        async def lossy(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            async with world.http.request(
                request.method,
                world.url + request.raw_path,
                data=body,
                headers={"Authorization": request.headers["Authorization"]},
            ) as answer:
                data = await answer.read()
            key = (request.method, request.raw_path, body)
            tries[key] = tries.get(key, 0) + 1
            if tries[key] == 1:
                assert request.transport is not None
                request.transport.abort()
            return web.Response(status=answer.status, body=data, content_type="application/json")

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", lossy)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        client = RolloutClient(f"http://127.0.0.1:{runner.addresses[0][1]}", control_key(SECRET))

        def work() -> None:
            (made,) = client.create([RolloutDraft(source="lossy")])
            attempt = client.begin(made.rollout_id, "node-1").attempt
            client.event(made.rollout_id, attempt, "note", {"n": 1})
            client.event(made.rollout_id, attempt, "reward", {"reward": 0.25})
            client.succeed(made.rollout_id, attempt)

        await asyncio.to_thread(work)
        await runner.cleanup()
        assert set(tries.values()) == {2}
        (rollout,) = world.store.page(source="lossy").rollouts
        assert (rollout.state, rollout.reward, rollout.attempt) == ("succeeded", 0.25, 1)
        assert [event.kind for event in world.store.event_page(rollout.spec.rollout_id).events] == ["note", "reward"]
