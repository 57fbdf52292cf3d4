"""Programs that are captured from outside: opened, read, ended, expired."""

import asyncio
import re
from pathlib import Path

import msgspec
import openai
import pytest
from gateway_world import SECRET, until, user

from whippletree.engines.scripted import Faults
from whippletree.errors import RequestError
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import control_key, mint
from whippletree.gateway.service import Gateway
from whippletree.gateway.sessions import Sessions
from whippletree.gateway.settling import Presence
from whippletree.gateway.wire import RolloutReport, SessionRequest
from whippletree.types import CauseClass, Sampling

CONTROL = {"Authorization": f"Bearer {control_key(SECRET)}"}


async def talk(opened, *texts, base_url=None):
    """One conversation with the official SDK; the replies."""
    messages, replies = [], []
    async with openai.AsyncOpenAI(base_url=base_url or opened.base_url, api_key=opened.api_key, max_retries=0) as sdk:
        for text in texts:
            messages.append(user(text))
            reply = await sdk.chat.completions.create(model="any", messages=messages)
            replies.append(reply.choices[0].message.content)
            messages.append({"role": "assistant", "content": replies[-1]})
    return replies


async def test_a_program_is_captured_and_its_samples_are_read(make_world):
    async with make_world(["one", "two"]) as world:
        request = SessionRequest(task_id="t7", harness="mine", labels={"seed": "3"}, sampling=Sampling(max_tokens=20, seed=5))
        opened = await world.control.open_session_async(request)
        assert opened.base_url == f"{world.url}/v1"
        assert opened.anthropic_base_url == opened.gemini_base_url == world.url
        assert opened.path_base_url == f"{world.url}/r/{opened.api_key}/v1"
        assert await talk(opened, "go", "go on") == ["one", "two"]
        report = await world.control.rollout_async(opened.session_id, samples=True)
        assert (report.settled, report.sealed, report.attempt, report.problem) == (True, False, 1, "")
        spec = report.view.rollout.spec
        assert (spec.task_id, spec.harness, spec.labels, spec.sampling.seed) == ("t7", "mine", {"seed": "3"}, 5)
        first, second = report.view.calls
        assert (second.parent, second.call.role, second.excluded) == (first.call.call_id, "main", "")
        (sample,) = report.view.samples
        assert sum(sample.trained) == first.call.sampled_tokens + second.call.sampled_tokens
        assert (
            len(sample.token_ids)
            == len(sample.logprobs)
            == len(sample.versions)
            == second.call.prompt_tokens + (second.call.sampled_tokens)
        )
        assert report.view.breaks == {"first": (first.call.call_id,)}
        assert report.view.funnel.trained == 2
        ended = await world.control.finish_session_async(opened.session_id, 0.5, {"tests": 0.5})
        assert (ended.state, ended.reward, ended.calls, ended.delivered) == ("succeeded", 0.5, 2, 2)
        assert world.store.attempts(opened.session_id)[0].result.scores == {"tests": 0.5}
        with pytest.raises(openai.PermissionDeniedError, match="sealed"):
            await talk(opened, "more")


async def test_the_example_in_the_documentation_works(make_world):
    page = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(example, names)
    async with make_world(lambda prompt: "hello") as world:
        trained = await asyncio.to_thread(names["capture"], world.url, control_key(SECRET))
        (rollout,) = [item for item in world.store.rollouts() if item.spec.source == "capture"]
        (call,) = world.calls(rollout.spec.rollout_id)
        assert (rollout.state, rollout.reward, trained) == ("succeeded", 1.0, call.sampled_tokens)


async def test_the_address_with_the_key_in_it_needs_no_other_key(make_world):
    async with make_world(lambda prompt: "hi") as world:
        opened = await world.control.open_session_async()
        plain = msgspec.structs.replace(opened, api_key="intercepted")
        assert await talk(plain, "go", base_url=opened.path_base_url) == ["hi"]


async def test_opening_again_with_the_same_id_is_the_same_session(make_world):
    async with make_world(None) as world:
        request = SessionRequest(session_id="mine", task_id="t")
        one = await world.control.open_session_async(request)
        assert await world.control.open_session_async(request) == one
        with pytest.raises(RequestError) as error:
            await world.control.open_session_async(SessionRequest(session_id="mine", task_id="another"))
        assert (error.value.status, error.value.code) == (409, "conflict")
        assert (await world.control.open_session_async()).session_id != (await world.control.open_session_async()).session_id


async def test_a_session_can_fail_and_be_cancelled_and_ends_once(make_world):
    async with make_world(lambda prompt: "hi") as world:
        failing, cancelled, done = [await world.control.open_session_async() for _ in range(3)]
        await talk(failing, "go")
        for _ in range(2):  # the same report again changes nothing
            state = await world.control.fail_session_async(failing.session_id, "exit code 7")
            assert (state.state, state.reward, state.calls) == ("failed", None, 1)
        cause = world.store.rollout(failing.session_id).cause
        assert (cause.cause, cause.message) == (CauseClass.HARNESS, "exit code 7")
        for _ in range(2):
            assert (await world.control.cancel_session_async(cancelled.session_id)).state == "failed"
        assert world.store.rollout(cancelled.session_id).cause.cause == CauseClass.CANCELLED
        await world.control.finish_session_async(done.session_id, 1.0)
        assert (await world.control.cancel_session_async(done.session_id)).state == "succeeded"
        with pytest.raises(RequestError) as error:
            await world.control.finish_session_async(done.session_id, 0.0)
        assert error.value.status == 409
        assert world.store.rollout(done.session_id).reward == 1.0


async def test_what_cannot_be_is_refused(make_world):
    async with make_world(None) as world:
        opened = await world.control.open_session_async()
        for body in (
            b"{}",
            b'{"reward": 1, "error": "x"}',
            b'{"reward": "x"}',
            b'{"reward": 1e999}',
            b"[",
            b"\xff",
            b"[" * 9999,
        ):
            url = f"{world.url}/sessions/{opened.session_id}/finish"
            async with world.http.post(url, data=body, headers=CONTROL) as response:
                assert (response.status, "error" in await response.json()) == (400, True), body
        for body in (b'{"sampling": {"max_tokens": 0}}', b'{"session_id": "' + b"x" * 300 + b'"}', b'{"labels": 3}'):
            async with world.http.post(world.url + "/sessions", data=body, headers=CONTROL) as response:
                assert response.status == 400
        assert world.store.rollout(opened.session_id).state == "running"
        for ask in (
            lambda: world.control.rollout_async("nobody"),
            lambda: world.control.finish_session_async("nobody", 1.0),
            lambda: world.control.cancel_session_async("nobody"),
        ):
            with pytest.raises(RequestError) as error:
                await ask()
            assert error.value.status == 404


async def test_a_controllers_rollout_can_be_read_but_not_ended_here(make_world):
    async with make_world(lambda prompt: "hi") as world:
        await world.chat([user("go")])
        report = await world.control.rollout_async("r0", samples=True)
        assert len(report.view.samples) == len(report.view.calls) == 1
        with pytest.raises(RequestError, match="no captured session") as error:
            await world.control.finish_session_async("r0", 1.0)
        assert error.value.status == 409
        assert (await world.chat([user("still open")]))[0] == 200


async def test_a_report_comes_as_json_too_and_without_samples_unless_asked(make_world):
    async with make_world(lambda prompt: "hi") as world:
        await world.chat([user("go")])
        url = f"{world.url}/sessions/r0/rollout"
        async with world.http.get(url, headers=CONTROL) as response:
            assert response.content_type == "application/json"
            report = msgspec.json.decode(await response.read(), type=RolloutReport)
        assert report.view.samples == ()
        async with world.http.get(url + "?samples=1&format=msgpack", headers=CONTROL) as response:
            assert response.content_type == "application/msgpack"
            packed = msgspec.msgpack.decode(await response.read(), type=RolloutReport)
        assert packed.view.calls[0].call == report.view.calls[0].call
        assert len(packed.view.samples) == 1
        async with world.http.get(url + "?format=xml", headers=CONTROL) as response:
            assert response.status == 400


async def test_a_rollout_whose_payloads_are_gone_says_so(make_world):
    async with make_world(lambda prompt: "hi") as world:
        await world.chat([user("go")])
        await world.control.seal_async("r0", 1)
        world.store.release(["r0"])
        report = await world.control.rollout_async("r0", samples=True)
        assert "released" in report.problem
        assert report.view.samples == ()
        assert [(call.call.index, call.excluded) for call in report.view.calls] == [(0, "no payload")]


async def test_a_call_that_is_not_trainable_says_why(make_world):
    async with make_world(lambda prompt: "word " * 300, faults=Faults(token_seconds=0.02)) as world:
        body = {"messages": [user("go")], "stream": True}
        async with world.http.post(f"{world.url}/r/{mint(SECRET, 'r0', 1)}/v1/chat/completions", json=body) as response:
            await response.content.readany()
            response.close()
        while not world.calls():
            await asyncio.sleep(0.01)
        report = await world.control.rollout_async("r0", samples=True)
        (call,) = report.view.calls
        assert (call.excluded, call.delivered, report.view.samples) == ("undelivered", False, ())


async def test_a_silent_session_is_ended_in_the_background(make_world):
    async with make_world(lambda prompt: "hi", session_ttl=0.4) as world:
        silent = await world.control.open_session_async()
        while world.store.rollout(silent.session_id).state == "running":
            await asyncio.sleep(0.05)
        cause = world.store.rollout(silent.session_id).cause
        assert (cause.cause, cause.message) == (CauseClass.DEADLINE, "no call for 0.4 seconds")
        assert world.store.attempts(silent.session_id)[0].finished - world.store.attempts(silent.session_id)[0].started >= 0.4
        assert world.store.rollout("r0").state == "running"  # a controller's rollouts are none of its business
        with pytest.raises(openai.PermissionDeniedError):
            await talk(silent, "too late")


async def test_a_session_expires_when_its_last_call_is_too_long_ago(make_world):
    async with make_world(lambda prompt: "hi") as world:
        silent, lively = [await world.control.open_session_async() for _ in range(2)]
        await talk(lively, "go")
        begun = world.store.attempts(silent.session_id)[0].started
        called = world.calls(lively.session_id)[0].times.finished
        config = GatewayConfig(session_ttl=100.0)
        gateway = Gateway(config, store=world.store, engines=world.engines, renderer=world.renderer, reports={})
        foreign = Sessions(gateway, world.store, Presence(), lambda rollout_id: False)
        assert await foreign.sweep(called + 1000.0) == []  # another worker's
        sessions = Sessions(gateway, world.store, Presence())
        assert await sessions.sweep(begun + 99.0) == []
        assert await sessions.sweep(begun + 100.0) == [silent.session_id]
        assert await sessions.sweep(called + 99.0) == []
        assert await sessions.sweep(called + 100.0) == [lively.session_id]
        assert await sessions.sweep(called + 1000.0) == []
        await gateway.close()


async def test_a_session_with_a_long_call_under_way_does_not_expire(make_world, monkeypatch):
    sweep, later, swept = Sessions.sweep, 0.0, []

    async def sweep_later(sessions, now):
        ahead = later
        swept.append((ahead, await sweep(sessions, now + ahead)))

    monkeypatch.setattr(Sessions, "sweep", sweep_later)
    monkeypatch.setattr("whippletree.gateway.sessions.SWEEP_PAUSE", 0.05)
    async with make_world(lambda prompt: "hi", session_ttl=300.0) as world:
        await world.control.hold_async()
        opened, silent = [await world.control.open_session_async() for _ in range(2)]
        pending = asyncio.create_task(talk(opened, "go"))
        while (await world.control.status_async()).waiting != 1:
            await asyncio.sleep(0.01)
        later = 1000.0
        await until(lambda: [ahead for ahead, _ in swept].count(later) >= 3)
        assert [ended for _, ended in swept if ended] == [[silent.session_id]]
        assert world.store.rollout(opened.session_id).state == "running"
        await world.control.release_async()
        assert await pending == ["hi"]
