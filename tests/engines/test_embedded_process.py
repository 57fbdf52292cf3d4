"""The engine process over HTTP: replies, refusals, disconnects, signals, the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from engine_parts import CONTEXT, Models, embedded_process
from sandbox_suite import running
from suite import Reference, idle, prompt_of, request, run

from whippletree.engines.embedded.__main__ import main
from whippletree.engines.embedded.client import EmbeddedEngine
from whippletree.engines.embedded.config import EmbeddedConfig
from whippletree.engines.embedded.server import EmbeddedServer
from whippletree.errors import ConfigurationError, EngineError, EngineUnavailable
from whippletree.types import WeightUpdate

LONG = 8192
ASK: dict[str, Any] = {"prompt": prompt_of(20), "max_tokens": 12, "seed": 4, "logprobs": 0, "return_token_ids": True}


@pytest.fixture(scope="module")
def url(models: Callable[[str], Models], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_process(models("qwen3").old, tmp_path_factory.mktemp("engine"), "--slots", "4") as (address, _):
        yield address


@pytest.fixture
async def http(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(url) as session:
        yield session


@pytest.fixture
async def engine(url: str) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(url)
    yield engine
    await engine.close()


async def post(http: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, Any]:
    async with http.post(path, json=body) as response:
        data = await response.read()
        return response.status, json.loads(data) if data else None


async def events(http: aiohttp.ClientSession, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with http.post("/v1/completions", json={**body, "stream": True}) as response:
        assert response.content_type == "text/event-stream"
        lines = [line[6:] for line in (await response.text()).split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_whole_reply_has_the_fields_of_vllms(http: aiohttp.ClientSession) -> None:
    status, reply = await post(http, "/v1/completions", ASK)
    assert status == 200
    assert reply["object"] == "text_completion"
    (choice,) = reply["choices"]
    assert choice["prompt_token_ids"] == ASK["prompt"]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == 12
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert (choice["finish_reason"], choice["stop_reason"], choice["text"]) == ("length", None, "")
    assert (choice["policy_version"], choice["versions"]) == (0, [{"start": 0, "policy_version": 0}])
    usage = reply["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (20, 12, 32)
    assert "cached_tokens" in usage["prompt_tokens_details"]


async def test_a_stream_joins_to_the_whole_reply(http: aiohttp.ClientSession) -> None:
    _, whole = await post(http, "/v1/completions", ASK)
    got = await events(http, {**ASK, "stream_options": {"include_usage": True}})
    *pieces, usage = got
    choices = [piece["choices"][0] for piece in pieces]
    expected = whole["choices"][0]
    assert [token for choice in choices for token in choice["token_ids"]] == expected["token_ids"]
    joined = [logprob for choice in choices for logprob in choice["logprobs"]["token_logprobs"]]
    assert joined == pytest.approx(expected["logprobs"]["token_logprobs"], abs=1e-5)
    assert [choice["prompt_token_ids"] for choice in choices] == [ASK["prompt"], *[None] * (len(choices) - 1)]
    assert [choice["finish_reason"] for choice in choices] == [*[None] * (len(choices) - 1), "length"]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 12)


async def test_a_stop_id_is_told_and_without_logprobs_none_are_sent(http: aiohttp.ClientSession) -> None:
    _, free = await post(http, "/v1/completions", ASK)
    stop = free["choices"][0]["token_ids"][3]
    _, reply = await post(http, "/v1/completions", {**ASK, "stop_token_ids": [stop], "logprobs": None})
    (choice,) = reply["choices"]
    assert (choice["finish_reason"], choice["stop_reason"], choice["logprobs"]) == ("stop", stop, None)
    assert choice["token_ids"][-1] == stop


async def test_prompt_logprobs_have_one_entry_per_prompt_token(
    http: aiohttp.ClientSession, models: Callable[[str], Models], reference: Reference
) -> None:
    _, reply = await post(http, "/v1/completions", {**ASK, "max_tokens": 1, "prompt_logprobs": 0})
    first, *columns = reply["choices"][0]["prompt_logprobs"]
    assert first is None
    scores = [column[str(token)]["logprob"] for column, token in zip(columns, ASK["prompt"][1:], strict=True)]
    assert scores == pytest.approx(reference(models("qwen3").old, ASK["prompt"], 1.0), abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/completions", {"prompt": prompt_of(CONTEXT)}, 400, "maximum context length"),
        ("/v1/completions", {"prompt": "text"}, 400, "cannot be read"),
        ("/v1/completions", {"prompt": [1], "n": 2}, 400, "n = 2"),
        ("/abort", {}, 400, "request_id"),
        ("/update_weights", {"directory": "/nowhere", "policy_version": 3}, 400, "/nowhere"),
        ("/nothing", {}, 404, "Not Found"),
    ],
)
async def test_refusals_are_json_errors(http: aiohttp.ClientSession, path: str, body: Any, status: int, words: str) -> None:
    got, reply = await post(http, path, body)
    assert got == reply["error"]["code"] == status
    assert words in reply["error"]["message"]
    assert reply["error"]["type"] == ("BadRequestError" if status < 500 else "InternalServerError")


async def test_models_status_and_health(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/models") as response:
        (card,) = (await response.json())["data"]
    assert (card["id"], card["max_model_len"]) == ("policy", CONTEXT)
    async with http.get("/health") as response:
        assert response.status == 200
    async with http.get("/status") as response:
        status = await response.json()
    assert (status["name"], status["context_length"]) == ("embedded", CONTEXT)


async def until_waiting(engine: EmbeddedEngine, count: int) -> None:
    while (await engine.status()).waiting != count:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_aborts_its_request(engine: EmbeddedEngine, url: str, stream: bool) -> None:
    body = {"prompt": prompt_of(8), "max_tokens": CONTEXT, "stream": stream}
    session = aiohttp.ClientSession(url)
    await engine.pause()
    asks = [asyncio.create_task(session.post("/v1/completions", json=body)) for _ in range(6)]
    await until_waiting(engine, 6)
    for ask in asks:
        ask.cancel()
    await asyncio.gather(*asks, return_exceptions=True)
    await session.close()
    assert await idle(engine)  # while still paused: nothing can have finished
    await engine.resume()


async def test_an_id_in_flight_is_a_409_and_its_refusal_harms_nobody(
    http: aiohttp.ClientSession, engine: EmbeddedEngine
) -> None:
    body = {**ASK, "request_id": "same", "max_tokens": 100}
    await engine.pause()
    first = asyncio.create_task(post(http, "/v1/completions", body))
    await until_waiting(engine, 1)
    assert (await post(http, "/v1/completions", body))[0] == 409
    await engine.resume()
    status, reply = await first
    assert (status, reply["choices"][0]["finish_reason"]) == (200, "length")


async def test_an_id_can_be_used_again_and_again(engine: EmbeddedEngine) -> None:
    for _ in range(20):
        turn = await run(engine, request("again", prompt_of(6), max_tokens=3))
        assert (turn.finish_reason, len(turn.token_ids)) == ("length", 3)


async def test_weights_that_do_not_load_leave_the_old_ones(engine: EmbeddedEngine, tmp_path: Path) -> None:
    before = await engine.score(prompt_of(12))
    with pytest.raises(EngineError) as raised:
        await engine.update_weights(WeightUpdate(directory=str(tmp_path), policy_version=9))
    assert not isinstance(raised.value, EngineUnavailable)  # trying again would not help
    assert (await engine.status()).policy_version == 0
    assert await engine.score(prompt_of(12)) == before


async def test_sigterm_ends_running_requests_with_abort_and_the_process_with_0(
    models: Callable[[str], Models], tmp_path: Path
) -> None:
    with embedded_process(models("llama").old, tmp_path, context=LONG) as (address, process):
        engine = EmbeddedEngine(address)
        stream = engine.generate(request("r", prompt_of(8), max_tokens=LONG))  # several seconds of it
        await anext(stream)
        await engine.pause()  # so that it cannot just finish
        process.send_signal(signal.SIGTERM)
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].finish_reason == "abort"
        assert await asyncio.to_thread(process.wait, 60) == 0
        with pytest.raises(EngineUnavailable):
            await engine.status()
        await engine.close()


def test_the_process_ends_with_its_parent(models: Callable[[str], Models], tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "whippletree.engines.embedded", "--model", models("llama").old]
    arguments = [*command, "--ready-file", str(ready), "--exit-with-parent"]
    script = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen({arguments!r})\n"
        f"while not os.path.exists({str(ready)!r}): time.sleep(0.02)\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100, env=environment, stdout=subprocess.DEVNULL)
    pid = json.loads(ready.read_bytes())["pid"]
    while running(pid):
        time.sleep(0.05)


def test_a_parent_that_ended_while_it_started_is_noticed(models: Callable[[str], Models]) -> None:
    with subprocess.Popen(("true",)) as gone:
        gone.wait()
    assert main(["--model", models("llama").old, "--exit-with-parent", str(gone.pid)]) == 0


def test_every_setting_is_an_option_and_a_wrong_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for field in msgspec.structs.fields(EmbeddedConfig):
        assert f"--{field.name.replace('_', '-')} " in shown
    with pytest.raises(SystemExit):
        main(["--model", "x", "--dtype", "float8"])
    assert "dtype" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--model", "/nowhere"], ["--model", "MODEL", "--slots", "0"]])
def test_a_model_that_cannot_be_served_is_one_line_and_status_1(
    models: Callable[[str], Models], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    command = [models("llama").old if argument == "MODEL" else argument for argument in arguments]
    capsys.readouterr()  # what writing the model said
    assert main(command) == 1
    assert capsys.readouterr().err.startswith("error: ")


async def test_a_context_beyond_the_models_own_is_lowered_to_it(models: Callable[[str], Models]) -> None:
    server = EmbeddedServer(EmbeddedConfig(model=models("llama").old, context=999_999, slots=2))
    try:
        async with TestClient(TestServer(server.app())) as client:
            card = (await (await client.get("/v1/models")).json())["data"][0]
            status = await (await client.get("/status")).json()
    finally:
        await server.close()
    limit = json.loads((Path(models("llama").old) / "config.json").read_text())["max_position_embeddings"]
    assert card["max_model_len"] == status["context_length"] == limit


async def test_no_model_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="no model"):
        EmbeddedServer(EmbeddedConfig())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_dead_engine_thread_makes_health_500_and_fails_streams(models: Callable[[str], Models]) -> None:
    server = EmbeddedServer(EmbeddedConfig(model=models("qwen3").old, context=64))

    def crash() -> None:
        raise ValueError("broken on purpose")

    async with TestClient(TestServer(server.app())) as client:
        await client.post("/pause")
        body = {"prompt": [1, 2], "stream": True}
        asked = asyncio.create_task(client.post("/v1/completions", json=body))
        stream = await asked
        with pytest.raises(EngineError):
            await server._worker.call(crash)
        text = await asyncio.wait_for(stream.text(), 60)
        assert '"code":500' in text
        for method, path in (("GET", "/health"), ("GET", "/status"), ("POST", "/pause"), ("POST", "/v1/completions")):
            response = await client.request(method, path, json=body)
            assert response.status == 500
            assert "died" in (await response.json())["error"]["message"]
    await server.close()


async def test_bfloat16_serves_and_reports_float32_logprobs(
    models: Callable[[str], Models], reference: Reference, tmp_path: Path
) -> None:
    directory = models("qwen3").old
    with embedded_process(directory, tmp_path, "--dtype", "bfloat16") as (address, _):
        engine = EmbeddedEngine(address)
        turns = await asyncio.gather(*(run(engine, request(f"r{i}", prompt_of(60, 1), max_tokens=20)) for i in range(5)))
        await engine.close()
    for turn in turns:
        expected = reference(directory, [*turn.prompt, *turn.token_ids], 1.0)[len(turn.prompt) - 1 :]
        assert turn.logprobs == pytest.approx(expected, abs=0.5)
        assert sum(abs(a - b) for a, b in zip(turn.logprobs, expected, strict=True)) / 20 < 0.1
