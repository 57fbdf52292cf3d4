"""Hosted chat APIs: what is sent, every way in which they answer, and their failures, over real sockets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from chat_server import Upstream, chat_turn, chunks_of, hosted, message_of, says, sse

from whippletree import configuration
from whippletree.engines import chat
from whippletree.engines.config import HostedConfig
from whippletree.engines.hosted import HostedEngine
from whippletree.errors import ConfigurationError, ContextOverflow, EngineError, EngineUnavailable
from whippletree.protocols import ChatEngine, Engine
from whippletree.types import GenerateRequest, Message, RequestedSampling, Sampling, ToolCall, ToolSpec, WeightUpdate

HELLO = sse(says(role="assistant", content=""), says(content="hel"), says(content="lo"), says("stop"))
USAGE = {"usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}}


# --- what is sent ---


async def test_messages_tools_and_sampling_are_written_and_unknown_fields_passed_on() -> None:
    upstream = Upstream(HELLO)
    turn = chat_turn(
        messages=(
            Message(role="system", content="be brief"),
            Message(role="user", content="list"),
            Message(role="assistant", reasoning="hm", tool_calls=(ToolCall(id="c1", name="bash", arguments='{"a":1}'),)),
            Message(role="tool", content="a b", tool_call_id="c1"),
        ),
        tools=(ToolSpec(name="bash", description="run", parameters={"type": "object"}),),
        forced_tool="bash",
        extra={"reasoning_effort": "low", "temperature": 9, "model": "other", "user": "me"},
        requested=RequestedSampling(stop=("END",), temperature=0.1),
    )
    async with hosted(upstream, reasoning_field="reasoning_content", extra={"user": "us"}, omit=["top_p"]) as engine:
        await chunks_of(engine, turn)
    (body,) = upstream.asked
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"a":1}'}}
    assert body["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "list"},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "a b", "tool_call_id": "c1"},
    ]
    tool = {"type": "function", "function": {"name": "bash", "description": "run", "parameters": {"type": "object"}}}
    assert body["tools"] == [tool]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "bash"}}
    assert (body["model"], body["temperature"], body["max_tokens"], body["stop"]) == ("m", 1.0, 40, ["END"])
    assert (body["reasoning_effort"], body["user"], body["stream"]) == ("low", "us", True)
    assert not {"top_p", "logprobs", "top_k", "seed", "return_token_ids", "request_id"} & body.keys()


async def test_limits_choices_schemas_and_seeds_have_their_names() -> None:
    upstream = Upstream(HELLO)
    schema = {"type": "object"}
    async with hosted(upstream, limit_field="max_completion_tokens") as engine:
        turn = chat_turn(tools=(ToolSpec(name="t"),), tool_choice="required", schema=schema)
        from msgspec.structs import replace

        await chunks_of(engine, replace(turn, sampling=Sampling(max_tokens=7, seed=3, top_k=5)))
    (body,) = upstream.asked
    assert (body["max_completion_tokens"], body["tool_choice"], body["seed"], body["top_k"]) == (7, "required", 3, 5)
    assert body["response_format"]["json_schema"] == {"name": "reply", "schema": schema, "strict": True}
    assert body["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {}}


# --- every form of answer ---

CALLED = says(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "bash", "arguments": "{}"}}])
ANSWERS: dict[str, tuple[bytes, str]] = {
    "usual": (HELLO, "text/event-stream"),
    "no done": (HELLO.removesuffix(b"data: [DONE]\n\n"), "text/event-stream; charset=utf-8"),
    "no last empty line": (HELLO.removesuffix(b"\n\ndata: [DONE]\n\n"), "text/event-stream"),
    "crlf": (HELLO.replace(b"\n", b"\r\n"), "text/event-stream"),
    "no space": (HELLO.replace(b"data: ", b"data:"), "text/event-stream"),
    "comments and names": (HELLO.replace(b"data: ", b": ping\n\nevent: message\nid: 1\ndata: "), "text/event-stream"),
    "usage null": (sse({**says(content="hello"), "usage": None}, says("stop")), "text/event-stream"),
    "finish only in an empty chunk": (
        sse(says(content="hello"), {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        "text/event-stream",
    ),
    "done without finish": (sse(says(content="hello")), "text/event-stream"),
    "content in parts": (sse(says("stop", content=[{"type": "text", "text": "hello"}])), "text/event-stream"),
    "whole reply": (
        json.dumps({"choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}).encode(),
        "application/json",
    ),
}


@pytest.mark.parametrize("piece", [0, 1])
@pytest.mark.parametrize("form", sorted(ANSWERS))
async def test_every_form_of_answer_is_the_same_turn(form: str, piece: int) -> None:
    body, content_type = ANSWERS[form]
    async with hosted(Upstream(body, content_type=content_type, piece=piece)) as engine:
        message = message_of(await chunks_of(engine))
    assert (message.content, message.finish_reason) == ("hello", "stop")


async def test_reasoning_and_content_of_one_chunk_both_come_and_counts_are_the_servers() -> None:
    events = sse(says(reasoning_content="hm", content="hi"), says(reasoning="m"), says("length", content="!"), USAGE)
    async with hosted(Upstream(events)) as engine:
        chunks = await chunks_of(engine)
    message = message_of(chunks)
    assert (message.reasoning, message.content, message.finish_reason) == ("hmm", "hi!", "length")
    assert (chunks[-1].prompt_tokens, chunks[-1].sampled_tokens, chunks[-1].cached_tokens) == (9, 2, 4)


@pytest.mark.parametrize("finish", ["tool_calls", "stop", "function_call"])
async def test_a_turn_with_calls_ends_with_calls(finish: str) -> None:
    async with hosted(Upstream(sse(CALLED, says(finish)))) as engine:
        message = message_of(await chunks_of(engine))
    assert message.finish_reason == "tool_calls"
    assert message.tool_calls == (ToolCall(id="c1", name="bash", arguments="{}"),)


async def test_calls_of_a_whole_reply_and_the_old_function_form_are_read() -> None:
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "bash", "arguments": "{}"}} for n in range(2)]
    whole = {"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}]}
    async with hosted(Upstream(json.dumps(whole).encode(), content_type="application/json")) as engine:
        assert [call.id for call in message_of(await chunks_of(engine)).tool_calls] == ["c0", "c1"]
    old = sse(says(function_call={"name": "bash", "arguments": ""}), says("function_call", function_call={"arguments": "{}"}))
    async with hosted(Upstream(old)) as engine:
        (call,) = message_of(await chunks_of(engine)).tool_calls
    assert (call.name, call.arguments) == ("bash", "{}")


async def test_a_stream_that_stays_open_after_its_finish_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "GRACE_SECONDS", 0.1)
    upstream = Upstream(HELLO.removesuffix(b"data: [DONE]\n\n"), hang=True)
    async with hosted(upstream) as engine:
        assert message_of(await chunks_of(engine)).content == "hello"
        await asyncio.wait_for(upstream.gone.wait(), 60)


async def test_closing_the_iterator_closes_the_connection() -> None:
    upstream = Upstream(sse(says(content="hel"), done=False), hang=True)
    async with hosted(upstream) as engine:
        chunks = engine.chat(chat_turn())
        await anext(chunks)
        assert not upstream.gone.is_set()
        await chunks.aclose()
        await asyncio.wait_for(upstream.gone.wait(), 60)


# --- failures ---


@pytest.mark.parametrize(
    ("body", "content_type", "kind", "words"),
    [
        (b"<html>bad gateway</html>", "text/html", EngineError, "bad gateway"),
        (b"<html>bad gateway</html>", "text/event-stream", EngineError, "bad gateway"),
        (b'{"error": "no such model"}', "application/json", EngineError, "no such model"),
        (b'{"error": {"message": "slow down", "code": 429}}', "application/json", EngineUnavailable, "slow down"),
        (b'{"object": "error", "message": "bad", "code": 400}', "text/event-stream", EngineError, "bad"),
        (b'{"status": "ok"}', "application/json", EngineError, "without choices"),
        (sse({"error": {"message": "overloaded", "type": "overloaded_error"}}), "text/event-stream", EngineUnavailable, "over"),
        (sse({"error": {"code": "context_length_exceeded", "message": "x"}}), "text/event-stream", ContextOverflow, "x"),
        (sse(says(content="a"), {"error": {"message": "gone", "code": 502}}), "text/event-stream", EngineUnavailable, "gone"),
        (sse(says(content="a"), says("error")), "text/event-stream", EngineUnavailable, "error"),
        (sse(says(content="a"), done=False), "text/event-stream", EngineUnavailable, "without a finish"),
        (b"", "text/event-stream", EngineUnavailable, "without a finish"),
        (sse(), "text/event-stream", EngineUnavailable, "without a finish"),
        (b"data: {broken\n\n", "text/event-stream", EngineError, "cannot be read"),
    ],
)
async def test_every_failure_is_an_error_that_quotes_the_server(
    body: bytes, content_type: str, kind: type[EngineError], words: str
) -> None:
    async with hosted(Upstream(body, content_type=content_type)) as engine:
        with pytest.raises(EngineError, match=words) as caught:
            await chunks_of(engine)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("status", "headers", "kind", "wait"),
    [
        (429, {"Retry-After": "7"}, EngineUnavailable, 7.0),
        (
            503,
            {"Retry-After": "Fri, 02 Jan 2026 00:00:30 GMT", "Date": "Fri, 02 Jan 2026 00:00:00 GMT"},
            EngineUnavailable,
            30.0,
        ),
        (529, {"Retry-After": "nonsense"}, EngineUnavailable, 0.0),
        (500, {"Retry-After": "99999"}, EngineUnavailable, 300.0),
        (500, {"Retry-After": "nan"}, EngineUnavailable, 0.0),
        (401, {}, EngineError, 0.0),
        (404, {}, EngineError, 0.0),
    ],
)
async def test_refusals_are_typed_and_say_when_to_come_back(
    status: int, headers: dict[str, str], kind: type[EngineError], wait: float
) -> None:
    upstream = Upstream(b'{"error": {"message": "no"}}', status=status, content_type="application/json", headers=headers)
    async with hosted(upstream) as engine:
        with pytest.raises(EngineError, match=f"answered {status}: no") as caught:
            await chunks_of(engine)
    assert type(caught.value) is kind
    assert getattr(caught.value, "retry_after", 0.0) == wait


async def test_a_prompt_that_is_too_long_is_told_as_such() -> None:
    body = b'{"error": {"code": "context_length_exceeded", "message": "too many tokens"}}'
    async with hosted(Upstream(body, status=400, content_type="application/json")) as engine:
        with pytest.raises(ContextOverflow):
            await chunks_of(engine)


# --- the key ---


async def test_the_key_is_sent_and_is_in_no_error_and_no_configuration(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-very-secret\nnot this\n")
    echo = b'{"error": {"message": "Incorrect API key: sk-very-secret"}}'
    for upstream in (
        Upstream(echo, status=401, content_type="application/json"),
        Upstream(echo, content_type="application/json"),
        Upstream(b"<p>sk-very-secret</p>", content_type="text/html"),
        Upstream(sse(says(content="a"), {"error": "sk-very-secret is bad"})),
    ):
        async with hosted(upstream, api_key_file=str(file)) as engine:
            with pytest.raises(EngineError) as caught:
                await chunks_of(engine)
        assert upstream.keys == ["Bearer sk-very-secret"]
        assert "[key]" in str(caught.value)
        assert "secret" not in f"{caught.value} {caught.value.__cause__!r} {vars(caught.value)}"
    config = HostedConfig(base_url="https://x/v1", model="m", api_key_file=str(file))
    assert "secret" not in configuration.dump(config)


async def test_the_key_may_come_from_a_variable_and_a_missing_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = Upstream(HELLO)
    monkeypatch.setenv("SOME_KEY", "k-1")
    async with hosted(upstream, api_key_env="SOME_KEY") as engine:
        await chunks_of(engine)
    assert upstream.keys == ["Bearer k-1"]
    (tmp_path / "empty").write_text("\n")
    for settings, words in (
        ({"api_key_env": "NO_SUCH_KEY"}, "variable NO_SUCH_KEY"),
        ({"api_key_file": str(tmp_path / "nowhere")}, "nowhere"),
        ({"api_key_file": str(tmp_path / "empty")}, "empty"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            HostedEngine(HostedConfig(base_url="https://x/v1", model="m", **settings))


def test_a_url_with_a_password_or_without_a_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="user name or password") as caught:
        HostedEngine(HostedConfig(base_url="https://me:pass@x/v1", model="m"))
    assert "pass@" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"engine\.model"):
        HostedEngine(HostedConfig(base_url="https://x/v1"))


# --- the protocols ---


async def test_it_is_a_chat_engine_and_refuses_what_needs_ids() -> None:
    engine = HostedEngine(HostedConfig(base_url="https://x/v1", model="m", context=99))
    assert isinstance(engine, ChatEngine)
    assert isinstance(engine, Engine)
    assert (await engine.status()).context_length == 99
    refused: list[Any] = [
        engine.pause,
        engine.resume,
        lambda: engine.score([1, 2]),
        lambda: engine.update_weights(WeightUpdate(directory="/x", policy_version=1)),
        lambda: anext(engine.generate(GenerateRequest(request_id="r", prompt_ids=[1], sampling=Sampling()))),
    ]
    for attempt in refused:
        with pytest.raises(EngineError, match="is a chat API and cannot"):
            await attempt()
    await engine.abort("anything")
