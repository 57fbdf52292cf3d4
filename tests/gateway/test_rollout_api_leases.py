"""Leases of the rollout API: what keeps an attempt, what loses it, and what its worker is told. Real store and HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from gateway_world import SECRET, until

from whippletree.errors import RequestError
from whippletree.gateway.keys import control_key, mint
from whippletree.gateway.rollout_api.client import RolloutClient
from whippletree.gateway.rollout_api.wire import Lease, RolloutDraft
from whippletree.store import RecordStore
from whippletree.types import CauseClass

KEY = {"Authorization": f"Bearer {control_key(SECRET)}"}
LONG = 600.0  # seconds; only a lease that was moved runs out


async def ask(world: Any, method: str, path: str, body: Any = None, *, headers: Any = KEY) -> tuple[int, Any]:
    async with world.http.request(method, world.url + path, json=body, headers=headers) as response:
        return response.status, await response.json()


async def begin(world: Any, name: str, *, lease: float | None = LONG, **fields: Any) -> int:
    await ask(world, "POST", "/api/rollouts", {"rollouts": [{"rollout_id": name, **fields}]})
    update = {"status": "running", "worker": "node-1"} | ({} if lease is None else {"lease_seconds": lease})
    status, begun = await ask(world, "PATCH", f"/api/rollouts/{name}", update)
    assert status == 200, begun
    return int(begun["attempt"])


def left(store: RecordStore, name: str) -> float:
    """Seconds until the lease of the rollout's attempt runs out."""
    return float(store._read("SELECT max(expires) FROM attempts WHERE rollout_id = ?", name)[0][0]) - time.time()


def move(store: RecordStore, name: str, seconds: float) -> None:
    """As if the lease had begun so many seconds earlier."""
    query = "UPDATE attempts SET expires = expires - ? WHERE rollout_id = ? AND expires IS NOT NULL"
    store._writer.submit(lambda tx: tx.connection.execute_many(query, [(seconds, name)])).result()


async def ended(world: Any, name: str, *states: str) -> Any:
    for _ in range(600):
        rollout = world.store.rollout(name)
        if rollout.state in states:
            return rollout
        await asyncio.sleep(0.05)
    raise AssertionError(f"{name} is still {world.store.rollout(name).state}")


async def test_an_attempt_of_a_worker_that_vanished_is_lost_and_tried_again(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        assert await begin(world, "a", lease=0.3) == 1
        await ended(world, "a", "queuing")
        (attempt,) = world.store.attempts("a")
        assert attempt.cause.cause is CauseClass.HOST_LOST and "'node-1' for 0.3 s" in attempt.cause.message
        assert await begin(world, "a") == 2


async def test_the_last_attempt_that_is_lost_fails_the_rollout(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await begin(world, "a", lease=0.3, max_attempts=1)
        rollout = await ended(world, "a", "failed")
        assert (rollout.cause.cause, rollout.cause.phase, rollout.reward) == (CauseClass.HOST_LOST, "lease", None)


@pytest.mark.parametrize("attempts", [1, 3])
async def test_whatever_a_lost_attempt_sends_is_refused_with_the_reason(make_world: Callable[..., Any], attempts: int) -> None:
    async with make_world() as world:
        await begin(world, "a", lease=0.3, max_attempts=attempts)
        before = await ended(world, "a", "queuing", "failed")
        for method, path, body in (
            ("POST", "/api/rollouts/a/attempt/1/heartbeat", None),
            ("POST", "/api/rollouts/a/attempt/1/events", {"kind": "reward", "data": {"reward": 1.0}}),
            ("PATCH", "/api/rollouts/a", {"status": "running", "attempt": 1}),
            ("PATCH", "/api/rollouts/a", {"status": "running", "attempt": 1, "worker": "node-1"}),
            ("PATCH", "/api/rollouts/a", {"status": "succeeded", "attempt": 1, "reward": 1.0}),
            ("PATCH", "/api/rollouts/a", {"status": "failed", "attempt": 1}),
            ("PATCH", "/api/rollouts/a", {"status": "queuing", "attempt": 1}),
        ):
            status, refused = await ask(world, method, path, body)
            assert (status, refused["error"]["code"]) == (409, "fenced"), (path, body, refused)
            assert "nothing was heard of worker 'node-1' for 0.3 s" in refused["error"]["message"]
        status, refused = await world.chat([{"role": "user", "content": "?"}], rollout="a")
        assert (status, refused["error"]["code"]) == (403, "sealed")
        assert world.store.rollout("a") == before and world.store.events("a") == [] and world.calls("a") == []


async def test_every_sign_of_life_renews(make_world: Callable[..., Any]) -> None:
    messages = [{"role": "user", "content": "?"}]
    async with make_world(["fine"] * 9) as world:
        await begin(world, "a")
        signs: dict[str, Callable[[], Any]] = {
            "heartbeat": lambda: ask(world, "POST", "/api/rollouts/a/attempt/1/heartbeat"),
            "event": lambda: ask(world, "POST", "/api/rollouts/a/attempt/1/events", {"kind": "note"}),
            "update": lambda: ask(world, "PATCH", "/api/rollouts/a", {"status": "running", "attempt": 1}),
            "begun again": lambda: ask(world, "PATCH", "/api/rollouts/a", {"status": "running", "worker": "node-1"}),
            "call": lambda: world.chat(messages, rollout="a"),
        }
        for name, sign in signs.items():
            move(world.store, "a", LONG - 60.0)
            assert left(world.store, "a") < 61.0
            status, answer = await sign()
            assert status == 200, (name, answer)
            assert left(world.store, "a") > LONG - 60.0, name
        assert (await signs["heartbeat"]())[1] == {"rollout_id": "a", "attempt": 1, "lease_seconds": LONG}


async def test_reading_is_no_sign_of_life(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await begin(world, "a")
        move(world.store, "a", LONG - 60.0)
        await ask(world, "GET", "/api/rollouts/a")
        await ask(world, "GET", "/api/rollouts/a/events")
        assert left(world.store, "a") < 61.0


async def test_a_call_that_takes_longer_than_the_lease_keeps_it(make_world: Callable[..., Any]) -> None:
    async with make_world(["late"]) as world:
        await world.engines[0].pause()
        await begin(world, "a", lease=3.0)
        over = time.time() + left(world.store, "a")
        calling = asyncio.create_task(world.chat([{"role": "user", "content": "?"}], rollout="a"))
        await until(lambda: time.time() > over + 0.5)
        await world.engines[0].resume()
        assert (await calling)[0] == 200
        assert world.store.rollout("a").state == "running" and len(world.calls("a")) == 1
        await ended(world, "a", "queuing")  # and then it runs out all the same


async def test_the_gateways_lease_is_the_default_and_0_is_none(make_world: Callable[..., Any]) -> None:
    async with make_world(lease_seconds=77.0) as world:
        await begin(world, "a", lease=None)
        await begin(world, "b", lease=0.0)
        assert world.store.attempts("a")[0].lease_seconds == 77.0
        assert world.store._read("SELECT expires FROM attempts WHERE rollout_id = 'b'") == [(None,)]
        status, lease = await ask(world, "POST", "/api/rollouts/b/attempt/1/heartbeat")
        assert (status, lease["lease_seconds"]) == (200, 0.0)


async def test_a_lease_is_only_for_an_attempt_that_begins(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await begin(world, "a")
        for update in (
            {"status": "failed", "attempt": 1, "lease_seconds": 5.0},
            {"status": "running", "attempt": 1, "lease_seconds": -1.0},
        ):
            assert (await ask(world, "PATCH", "/api/rollouts/a", update))[0] == 400
        assert world.store.rollout("a").state == "running"


async def test_a_heartbeat_needs_the_control_key(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await begin(world, "a")
        move(world.store, "a", LONG - 60.0)
        path = "/api/rollouts/a/attempt/1/heartbeat"
        assert (await ask(world, "POST", path, headers={}))[0] == 401
        assert (await ask(world, "POST", path, headers={"Authorization": f"Bearer {mint(SECRET, 'a', 1)}"}))[0] == 403
        assert left(world.store, "a") < 61.0
        status, refused = await ask(world, "POST", "/api/rollouts/nobody/attempt/1/heartbeat")
        assert (status, refused["error"]["code"]) == (404, "not_found")


async def test_a_gateway_that_was_away_gives_every_lease_its_time_again(make_world: Callable[..., Any]) -> None:
    """While no gateway was there nobody could send a sign of life: a lease that ended meanwhile has not run out."""
    async with make_world() as world:
        await begin(world, "a")
        await begin(world, "b", lease=0.3)
    async with make_world() as world:  # the same run directory, another gateway
        move(world.store, "a", 2 * LONG)
        await ended(world, "b", "queuing")  # it has been there for longer than this lease
        assert world.store.rollout("a").state == "running"
        assert (await ask(world, "POST", "/api/rollouts/a/attempt/1/heartbeat"))[0] == 200
        assert left(world.store, "a") > LONG - 60.0


async def test_a_gateway_that_stood_still_gives_every_lease_its_time_again(make_world: Callable[..., Any]) -> None:
    """While it did, it heard nobody: what ran out meanwhile has not run out."""
    async with make_world() as world:
        await begin(world, "b", lease=0.3)
        await ended(world, "b", "queuing")  # it looks, and has been there for longer than the next lease
        await asyncio.sleep(1.0)
        await begin(world, "a", lease=1.5)
        time.sleep(2.5)  # everything in this process, as where its machine stops
        assert left(world.store, "a") < 0.0
        status, answer = await ask(world, "POST", "/api/rollouts/a/attempt/1/heartbeat")
        assert (status, answer.get("lease_seconds")) == (200, 1.5)
        await ended(world, "a", "queuing")  # and then it runs out all the same


async def test_a_call_whose_lease_ran_out_elsewhere_is_not_recorded(
    make_world: Callable[..., Any],
) -> None:
    """Another gateway, whose clock this one cannot know, ended the attempt while its reply was being sampled."""
    async with make_world(["late"]) as world:
        await world.engines[0].pause()
        await begin(world, "a")
        calling = asyncio.create_task(world.chat([{"role": "user", "content": "?"}], rollout="a"))
        while not world.engines[0]._running:
            await asyncio.sleep(0.01)
        move(world.store, "a", 2 * LONG)
        assert len(await asyncio.to_thread(world.store.end_lapsed)) == 1
        await world.engines[0].resume()
        status, refused = await calling
        assert (status, refused["error"]["code"]) == (403, "sealed")
        assert world.calls("a") == []


class Hurried(RolloutClient):
    """Sends heartbeats as if leases were short; they are not, so that none runs out where the machine is slow."""

    def heartbeat(self, rollout_id: str, attempt: int) -> Lease:
        return msgspec.structs.replace(super().heartbeat(rollout_id, attempt), lease_seconds=0.4)


async def test_the_client_keeps_an_attempt_while_its_worker_works(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        client = Hurried(world.url, control_key(SECRET))

        def work() -> None:
            (rollout,) = client.create([RolloutDraft(rollout_id="a")])
            attempt = client.begin(rollout.rollout_id, "node-1", lease_seconds=LONG).attempt
            with client.keeping("a", attempt) as kept:
                for _ in range(3):  # says nothing itself
                    move(world.store, "a", LONG - 60.0)
                    while left(world.store, "a") < LONG - 60.0:
                        time.sleep(0.01)
                kept.check()
            assert not kept.lost.is_set()
            client.succeed("a", attempt, 1.0)

        await asyncio.to_thread(work)
        assert (world.store.rollout("a").state, len(world.store.attempts("a"))) == ("succeeded", 1)


async def test_the_client_says_that_the_attempt_is_lost(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        client = Hurried(world.url, control_key(SECRET))

        def work() -> None:
            client.create([RolloutDraft(rollout_id="a")])
            attempt = client.begin("a", "node-1", lease_seconds=LONG).attempt
            with client.keeping("a", attempt) as kept:
                client.cancel(["a"], reason="too old")
                assert kept.lost.wait(60.0)
                with pytest.raises(RequestError, match="was cancelled") as caught:
                    kept.check()
                assert (caught.value.status, caught.value.code) == (409, "fenced")
            with pytest.raises(RequestError, match="was cancelled"), client.keeping("a", attempt):
                raise AssertionError("not reached")

        await asyncio.to_thread(work)


async def test_without_a_lease_the_client_has_nothing_to_send(make_world: Callable[..., Any]) -> None:
    async with make_world(lease_seconds=0.0) as world:
        client = RolloutClient(world.url, control_key(SECRET))

        def work() -> None:
            client.create([RolloutDraft(rollout_id="a")])
            with client.keeping("a", client.begin("a", "node-1").attempt) as kept:
                assert "lease-a" not in {thread.name for thread in threading.enumerate()}
                assert not kept.lost.is_set()

        await asyncio.to_thread(work)
