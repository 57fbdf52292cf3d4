"""The scripted engine as a process: the shared suite, scripts from files, and faults as they show on the wire."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from suite import EngineSuite, Served, request, run

from whippletree.engines.config import Faults, ScriptedConfig
from whippletree.engines.connect import client_of
from whippletree.engines.embedded.client import EmbeddedEngine
from whippletree.engines.scripted import ScriptedEngine
from whippletree.engines.scripted_server import ScriptedServer, main
from whippletree.errors import ConfigurationError, EngineError, EngineUnavailable
from whippletree.protocols import Engine
from whippletree.types import Struct


@asynccontextmanager
async def scripted(**settings: Any) -> AsyncIterator[EmbeddedEngine]:
    server = ScriptedServer.configured(ScriptedConfig(**settings))
    runner = aiohttp.web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine = EmbeddedEngine(f"http://127.0.0.1:{runner.addresses[0][1]}", name="scripted")
    try:
        yield engine
    finally:
        await engine.close()
        await runner.cleanup()


@contextmanager
def process(directory: Path, *arguments: str) -> Iterator[str]:
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "whippletree.engines.scripted_server", "--ready-file", str(ready), "--exit-with-parent"]
    child = subprocess.Popen([*command, *arguments], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + 60
        while not ready.exists():
            assert child.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.02)
        address = json.loads(ready.read_bytes())
        yield f"http://{address['host']}:{address['port']}"
    finally:
        child.terminate()
        assert child.wait(60) == 0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    faults = '{"token_seconds": 0.001}'
    arguments = ("--vocabulary", "256", "--context", "8192", "--faults", faults)
    with process(tmp_path_factory.mktemp("scripted"), *arguments) as address:
        yield address


@pytest.fixture
async def engine(url: str, served: Served) -> AsyncIterator[Engine]:
    from whippletree.types import WeightUpdate

    engine = client_of(ScriptedConfig(url=url), "")
    version = (await engine.status()).policy_version
    await engine.update_weights(WeightUpdate(directory=served.old, policy_version=version + 1))
    yield engine
    await engine.close()


@pytest.fixture
def served() -> Served:
    return Served(vocabulary=256, context=8192, old="old", new="new", tolerance=1e-6)


class TestScriptedProcessSuite(EngineSuite):
    """Every behaviour of the suite, through the client of the embedded engine, against a process."""

    async def test_status_says_what_is_served(self, engine: Engine, served: Served) -> None:
        status = await engine.status()
        assert (status.context_length, status.paused, status.name) == (served.context, False, "scripted")


# --- scripts ---


async def test_answers_come_from_a_file_in_turn_and_again(tmp_path: Path) -> None:
    script = tmp_path / "answers.json"
    script.write_text("[[5, 6, 2], [7, 2]]")
    async with scripted(script=str(script)) as engine:
        turns = [await run(engine, request(f"r{n}", [1, 9], stop=[2])) for n in range(3)]
    assert [turn.token_ids for turn in turns] == [[5, 6, 2], [7, 2], [5, 6, 2]]
    async with scripted(script=str(script), repeat=False) as engine:
        for n in range(2):
            await run(engine, request(f"r{n}", [1, 9]))
        with pytest.raises(EngineUnavailable, match="used up"):
            await run(engine, request("r2", [1, 9]))


async def test_texts_are_encoded_by_the_models_tokenizer_and_end_with_the_stop_token(tmp_path: Path) -> None:
    from vllm_parts import tiny_model

    from whippletree.rendering.codec import load_codec

    model = tiny_model(tmp_path / "model", seed=1)
    (tmp_path / "answers.json").write_text('["the trail starts", [5]]')
    config = ScriptedConfig(script=str(tmp_path / "answers.json"), model=str(model), vocabulary=10)
    engine = ScriptedEngine.configured(config)
    codec = load_codec(model / "tokenizer.json")
    turn = await run(engine, request("r1", codec.encode("each file"), stop=[2]))
    assert codec.decode(turn.token_ids) == "the trail starts<|im_end|>"
    assert turn.finish_reason == "stop"


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        ("[", {}, "answers.json"),
        ("[]", {}, "is empty"),
        ('["hi"]', {}, "entry 0 is a text and engine.model is not set"),
        ("[[5], []]", {}, "entry 1 has no usable token id"),
        ("[[-1]]", {}, "entry 0"),
    ],
)
def test_a_script_that_cannot_be_used_is_named(tmp_path: Path, text: str, settings: dict[str, Any], words: str) -> None:
    (tmp_path / "answers.json").write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        ScriptedEngine.configured(ScriptedConfig(script=str(tmp_path / "answers.json"), **settings))
    with pytest.raises(ConfigurationError, match=r"nowhere\.json"):
        ScriptedEngine.configured(ScriptedConfig(script=str(tmp_path / "nowhere.json")))


async def test_tokens_may_come_several_at_once() -> None:
    engine = ScriptedEngine(chunk_tokens=4)
    chunks = [chunk async for chunk in engine.generate(request("r1", [1, 2], max_tokens=10))]
    assert [len(chunk.token_ids) for chunk in chunks] == [4, 4, 2]
    single = await run(ScriptedEngine(), request("r1", [1, 2], max_tokens=10))
    assert [token for chunk in chunks for token in chunk.token_ids] == single.token_ids


# --- faults on the wire ---


class Raw(Struct):
    """What came over the socket.

    Example: Raw(status=200, body=b"data: ...", cut=False)
    """

    status: int
    body: bytes
    cut: bool


async def raw(engine: EmbeddedEngine, **body: Any) -> Raw:
    asked = {"prompt": [1, 2], "max_tokens": 6, "logprobs": 0, "return_token_ids": True, "stream": True, **body}
    async with aiohttp.ClientSession() as session, session.post(f"{engine.http.base_url}/v1/completions", json=asked) as reply:
        found = b""
        try:
            async for data in reply.content.iter_any():
                found += data
        except aiohttp.ClientError:
            return Raw(status=reply.status, body=found, cut=True)
        return Raw(status=reply.status, body=found, cut=False)


async def test_status_503_and_500_come_as_often_as_they_should() -> None:
    async with scripted(faults=Faults(unavailable=1, broken=2)) as engine:
        assert [(await raw(engine)).status for _ in range(5)] == [503, 500, 500, 200, 200]


async def test_a_stream_is_cut_in_the_middle_as_often_as_it_should() -> None:
    async with scripted(faults=Faults(reset_after=3, resets=1)) as engine:
        first, second = await raw(engine), await raw(engine)
    assert (first.status, first.cut, second.cut) == (200, True, False)
    assert first.body.count(b"data: ") <= 3
    assert second.body.endswith(b"data: [DONE]\n\n")
    async with scripted(faults=Faults(reset_after=3)) as engine:
        with pytest.raises(EngineUnavailable):
            await run(engine, request("r1", [1, 2], max_tokens=6))


async def test_an_error_comes_inside_a_200_and_the_client_tells_it() -> None:
    async with scripted(faults=Faults(error_after=2, errors=1)) as engine:
        reply = await raw(engine)
        assert (reply.status, reply.cut) == (200, False)
        assert b'"error":{"message":"scripted: failed after 2 tokens' in reply.body
        assert (await run(engine, request("r1", [1, 2], max_tokens=6))).finish_reason == "length"
    async with scripted(faults=Faults(error_after=2)) as engine:
        with pytest.raises(EngineError, match="failed after 2 tokens"):
            await run(engine, request("r1", [1, 2], max_tokens=6))


@pytest.mark.parametrize(("fault", "grade"), [("drop_ids", "logprobs"), ("no_logprobs", "text")])
async def test_missing_columns_are_graded_down(fault: str, grade: str) -> None:
    async with scripted(faults=Faults(**{fault: True})) as engine:
        with pytest.raises(EngineError, match="token ids came with"):
            await run(engine, request("r1", [1, 2], max_tokens=6))
        assert (await engine.probe()).grade == grade


async def test_slowness_delays_and_changes_nothing() -> None:
    async with scripted(faults=Faults(first_token_seconds=0.05, token_seconds=0.001)) as slow, scripted() as quick:
        asked = request("r1", [1, 2], max_tokens=6)
        assert (await run(slow, asked)).token_ids == (await run(quick, asked)).token_ids


async def test_a_whole_reply_is_the_same_turn() -> None:
    async with scripted() as engine:
        streamed = await run(engine, request("r1", [1, 2], max_tokens=6, seed=4))
        whole = json.loads((await raw(engine, stream=False, seed=4)).body)
    assert whole["choices"][0]["token_ids"] == streamed.token_ids
    assert whole["usage"]["completion_tokens"] == 6


# --- the process ---


def test_every_setting_is_an_option_and_a_wrong_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for field in msgspec.structs.fields(ScriptedConfig):
        assert f"--{field.name.replace('_', '-')} " in shown
    for wrong in (["--faults", "{"], ["--faults", '{"rset_after": 3}'], ["--repeat", "perhaps"]):
        with pytest.raises(SystemExit):
            main(wrong)
        assert wrong[0].lstrip("-") in capsys.readouterr().err
    assert main(["--script", "/nowhere.json"]) == 1
    assert capsys.readouterr().err.startswith("error: engine.script /nowhere.json")


def test_a_signal_that_comes_with_the_ready_file_ends_it_in_order(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from whippletree.engines import process, scripted_server\n"
        "process.write_json = lambda path, ready: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.exit(scripted_server.main(['--ready-file', sys.argv[1]]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "ready.json")], timeout=60, check=False).returncode == 0


async def test_many_streams_at_once_are_answered(url: str) -> None:
    engine = client_of(ScriptedConfig(url=url), "")
    turns = await asyncio.gather(*(run(engine, request(f"s{n}", [n % 200, 3], max_tokens=3)) for n in range(200)))
    await engine.close()
    assert all(len(turn.token_ids) == 3 for turn in turns)
