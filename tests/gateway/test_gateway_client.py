"""The control client."""

import asyncio

import pytest
from gateway_world import SECRET

from whippletree.engines.scripted import Faults
from whippletree.errors import ConfigurationError, RequestError
from whippletree.gateway.client import GatewayControl
from whippletree.gateway.keys import control_key
from whippletree.types import RolloutSpec


async def test_a_refusal_carries_status_and_text(make_world):
    async with make_world(None) as world:
        with pytest.raises(RequestError, match="control key is wrong") as error:
            await GatewayControl(world.url, "wtc-nope").status_async()
        assert (error.value.status, error.value.code) == (401, "invalid_api_key")


def test_nobody_there_is_a_503_after_the_patience(unused_port):
    with pytest.raises(RequestError, match="is not there") as error:
        GatewayControl(f"http://127.0.0.1:{unused_port}", "k", patience=0.2).status()
    assert error.value.status == 503


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]  # nobody else gets it, and it does not listen


def test_an_address_that_is_none_is_refused():
    for url in ("127.0.0.1:8000", "unix:///x", ""):
        with pytest.raises(ConfigurationError):
            GatewayControl(url, "k")


@pytest.mark.parametrize("rollout_id", ["a b", "a/b", "../x", "q?r#s", "ü%2F", "'; DROP TABLE calls; --"])
async def test_any_rollout_id_arrives_unchanged(make_world, rollout_id):
    async with make_world(lambda prompt: "hi") as world:
        spec = RolloutSpec(rollout_id=rollout_id, group_id="g", source="s", task_id="t", task_path="/t", harness="h")
        world.store.create_rollouts([spec]).result()
        world.store.claim("worker", 1).result()
        assert (await world.chat([{"role": "user", "content": "go"}], rollout=rollout_id))[0] == 200
        report = await GatewayControl(world.url, control_key(SECRET)).seal_async(rollout_id, 1)
        assert (report.sealed, report.calls, report.delivered) == (True, 1, 1)


async def test_a_hold_can_be_asked_to_end_what_runs(make_world):
    async with make_world(lambda prompt: "word " * 60, faults=Faults(token_seconds=0.02)) as world:
        pending = asyncio.create_task(world.chat([{"role": "user", "content": "go"}]))
        while not (await world.control.status_async()).in_flight:
            await asyncio.sleep(0.01)
        report = await world.control.hold_async(limit=0.1, abort=True)
        assert (report.held, report.in_flight) == (True, 0)
        await world.control.release_async()
        assert (await pending)[0] == 200
        (call,) = world.calls()
        assert (call.finish_reason, call.error) == ("stop", "")
        assert (await world.control.status_async()).resumed == 1
