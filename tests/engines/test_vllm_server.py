"""The vLLM adapter against a real vLLM on CPU: the shared suite, and weights that really change.

Set WHIPPLETREE_VLLM_PYTHON to the interpreter of an environment with vLLM (see docs/vllm.md), and run `pytest -m vllm`.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from suite import EngineSuite, Reference, Served, close, idle, prompt_of, request, run
from vllm_parts import PYTHON, needs_vllm, tiny_model, vllm_server

from whippletree.engines.probe import check_weights
from whippletree.engines.vllm import VllmEngine
from whippletree.engines.vllm_wire import RpcReply
from whippletree.errors import EngineError, WeightMismatch
from whippletree.protocols import ChatEngine, Engine
from whippletree.types import ChatRequest, ChatTurn, Message, Sampling, Struct, WeightUpdate

TOLERANCE = 1e-3
VOCABULARY = 307
CONTEXT = 512

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400), needs_vllm]


class Reload(Struct):
    """vLLM's own way to load other weights.

    Example: Reload(method="reload_weights", kwargs={"weights_path": "/weights"})
    """

    method: str
    kwargs: dict[str, str]


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("tied")
    return tiny_model(root / "old", seed=1, positions=CONTEXT), tiny_model(root / "new", seed=2, positions=CONTEXT)


@pytest.fixture(scope="module")
def url(tied: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "vllm.log"
    with vllm_server(PYTHON, tied[0], log, ["--logits-processors=slow_steps:SlowSteps"]) as address:
        yield address


@pytest.fixture
def served(tied: tuple[Path, Path], reference: Reference) -> Served:
    old, new = map(str, tied)
    return Served(VOCABULARY, CONTEXT, old, new, tolerance=TOLERANCE, reference=reference, cache_block=32)


async def fresh(url: str, directory: str) -> VllmEngine:
    """A client of a running server that serves `directory`, under a version it had not served before."""
    engine = VllmEngine(url)
    await engine.resume()
    await engine.update_weights(
        WeightUpdate(directory=directory, policy_version=max(0, (await engine.status()).policy_version) + 1)
    )
    return engine


@pytest.fixture
async def engine(url: str, served: Served) -> AsyncIterator[Engine]:
    engine = await fresh(url, served.old)
    yield engine
    await engine.close()


class TestVllmSuite(EngineSuite):
    """Every behaviour of the suite, but for sampling that vLLM cannot report whole logprobs of."""

    async def test_truncated_sampling_reports_full_logprobs(self, engine: Engine, served: Served) -> None:
        with pytest.raises(EngineError, match="whole distribution"):
            await run(engine, request("top-k", prompt_of(11, 4), max_tokens=12, top_k=2, top_p=0.9, seed=3))

    async def test_top_k_of_one_is_greedy(self, engine: Engine) -> None:
        greedy = [await run(engine, request(f"greedy-{i}", prompt_of(8, 5), max_tokens=10, temperature=0.0)) for i in range(2)]
        assert greedy[0].token_ids == greedy[1].token_ids


async def test_each_update_serves_exactly_the_new_weights(url: str, served: Served, reference: Reference) -> None:
    engine = await fresh(url, served.old)
    ids = prompt_of(60, 21)
    old, new = (reference(directory, ids, 1.0) for directory in (served.old, served.new))
    assert await check_weights(engine, ids, old, TOLERANCE) < TOLERANCE
    with pytest.raises(WeightMismatch):
        await check_weights(engine, ids, new, TOLERANCE)
    for version, directory, expected in ((50, served.new, new), (51, served.old, old), (52, served.new, new)):
        await engine.pause()
        await engine.update_weights(WeightUpdate(directory=directory, policy_version=version))
        await engine.resume()
        assert await check_weights(engine, ids, expected, TOLERANCE) < TOLERANCE
        assert (await engine.status()).policy_version == version
    await engine.close()


async def test_vllms_own_reload_is_silently_wrong_and_is_caught(url: str, served: Served, reference: Reference) -> None:
    engine = await fresh(url, served.old)
    ids = prompt_of(60, 22)
    reload = Reload(method="reload_weights", kwargs={"weights_path": served.new})
    await engine.http.request("POST", "/collective_rpc", msgspec.json.encode(reload), seconds=60.0)
    for directory in (served.new, served.old):
        with pytest.raises(WeightMismatch):
            await check_weights(engine, ids, reference(directory, ids, 1.0), TOLERANCE)
    await engine.update_weights(WeightUpdate(directory=served.new, policy_version=60))
    assert await check_weights(engine, ids, reference(served.new, ids, 1.0), TOLERANCE) < TOLERANCE
    await engine.close()


async def test_another_models_weights_are_refused_and_the_old_ones_stay(
    url: str, served: Served, reference: Reference, tmp_path: Path
) -> None:
    engine = await fresh(url, served.old)
    before = (await engine.status()).policy_version
    weights = (tiny_model(tmp_path / "other", seed=3, positions=CONTEXT) / "model.safetensors").read_bytes()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "model.safetensors").write_bytes(weights.replace(b"q_norm.weight", b"x_norm.weight"))
    with pytest.raises(EngineError, match="_norm"):
        await engine.update_weights(WeightUpdate(directory=str(tmp_path / "cut"), policy_version=before + 1))
    assert (await engine.status()).policy_version == before
    ids = prompt_of(40, 23)
    assert await check_weights(engine, ids, reference(served.old, ids, 1.0), TOLERANCE) < TOLERANCE
    await engine.close()


async def test_a_second_client_sees_the_version_that_the_first_one_set(url: str, served: Served) -> None:
    trainer = await fresh(url, served.old)
    gateway = VllmEngine(url)
    await trainer.update_weights(WeightUpdate(directory=served.new, policy_version=70))
    turn = await run(gateway, request("second-client", prompt_of(9, 24), max_tokens=4))
    assert {span.policy_version for span in turn.spans} == {70}
    await gateway.close()
    await trainer.close()


async def test_an_abort_while_paused_ends_the_turn(url: str, served: Served) -> None:
    engine = await fresh(url, served.old)
    await engine.pause()
    going = asyncio.create_task(run(engine, request("frozen", prompt_of(9, 25), max_tokens=50)))
    await asyncio.sleep(0.3)
    await engine.abort("frozen")
    turn = await going
    await engine.resume()
    assert (turn.finish_reason, turn.token_ids) == ("abort", [])
    await engine.close()


async def test_workers_that_fail_leave_no_label_that_could_be_trusted(url: str, served: Served, tmp_path: Path) -> None:
    engine = await fresh(url, served.old)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00not json")
    with pytest.raises(EngineError):
        await engine.update_weights(WeightUpdate(directory=str(broken), policy_version=80))
    assert (await engine.status()).policy_version == -1
    with pytest.raises(EngineError, match="did not finish"):
        await run(engine, request("mislabelled", prompt_of(9, 26), max_tokens=4))
    await engine.update_weights(WeightUpdate(directory=served.old, policy_version=81))
    assert (await run(engine, request("labelled", prompt_of(9, 26), max_tokens=4))).spans[0].policy_version == 81
    await engine.close()


@pytest.fixture(scope="module")
def untied_raw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    """A server with untied embeddings, in raw logprobs mode: URL and two weight directories."""
    root = tmp_path_factory.mktemp("untied")
    old, new = (tiny_model(root / name, seed=seed, tied=False) for name, seed in (("old", 4), ("new", 5)))
    with vllm_server(PYTHON, old, root / "vllm.log", arguments=["--logprobs-mode=raw_logprobs"]) as address:
        yield address, str(old), str(new)


async def test_untied_embeddings_are_swapped_too_and_raw_logprobs_are_found_out(
    untied_raw: tuple[str, str, str], reference: Reference
) -> None:
    url, old, new = untied_raw
    engine = VllmEngine(url)
    report = await engine.probe()
    assert (report.grade, report.logprobs) == ("tokens", "raw")
    ids = prompt_of(60, 27)
    for version, directory in ((0, old), (1, new), (2, old)):
        if version:
            await engine.update_weights(WeightUpdate(directory=directory, policy_version=version))
        assert await check_weights(engine, ids, reference(directory, ids, 1.0), TOLERANCE) < TOLERANCE
    await engine.close()


def test_a_load_says_how_much_it_packed_again(url: str, served: Served) -> None:
    async def load() -> RpcReply:
        engine = await fresh(url, served.old)
        body = msgspec.convert({"method": "whippletree_load", "kwargs": {"directory": served.old}}, Reload)
        reply = await engine.http.call("POST", "/collective_rpc", RpcReply, body)
        await engine.close()
        return reply

    (worker,) = asyncio.run(load()).results
    assert (worker.tensors, worker.repacked, worker.refused) == (24, 2, "")


# --- the chat endpoint ---


def asked(**fields: Any) -> ChatTurn:
    request = ChatRequest(model="policy", messages=(Message(role="user", content="the trail starts at amber"),))
    request = msgspec.structs.replace(request, **fields)
    return ChatTurn(request_id=f"chat-{uuid.uuid4().hex}", request=request, sampling=Sampling(max_tokens=24, seed=3))


async def test_the_chat_endpoint_gives_prompt_ids_ids_and_their_logprobs(engine: VllmEngine, served: Served) -> None:
    assert isinstance(engine, ChatEngine)
    chunks = [chunk async for chunk in engine.chat(asked())]
    prompt = [token for chunk in chunks for token in chunk.prompt_ids]
    ids = [token for chunk in chunks for token in chunk.token_ids]
    logprobs = [value for chunk in chunks for value in chunk.logprobs]
    assert len(ids) == len(logprobs) == chunks[-1].sampled_tokens
    assert len(prompt) == chunks[-1].prompt_tokens
    assert chunks[-1].finish_reason in ("stop", "length")
    assert not any(chunk.deltas for chunk in chunks)
    assert {chunk.policy_version for chunk in chunks} == {(await engine.status()).policy_version}
    assert close(logprobs, (await engine.score(prompt + ids))[len(prompt) - 1 :], served.tolerance)


async def test_closing_a_chat_ends_it_in_the_server(engine: VllmEngine, served: Served) -> None:
    turn = msgspec.structs.replace(asked(), sampling=Sampling(max_tokens=served.long))
    stream = engine.chat(turn)
    await anext(stream)
    await stream.aclose()
    assert await idle(engine)


async def test_the_probe_finds_the_context_and_what_the_chat_endpoint_can_do(engine: VllmEngine) -> None:
    report = await engine.probe()
    assert (report.context_length, report.structured, report.experts) == (CONTEXT, True, False)
    assert not report.tool_calls  # this server was started without a tool call parser


async def test_tokens_follow_a_schema(engine: VllmEngine, served: Served) -> None:
    from transformers import AutoTokenizer

    schema = {"type": "object", "properties": {"ok": {"enum": [True]}}, "required": ["ok"], "additionalProperties": False}
    bound = msgspec.structs.replace(request("schema", prompt_of(9, 28), stop=[2], max_tokens=120, seed=1), schema=schema)
    turn = await run(engine, bound)
    text = AutoTokenizer.from_pretrained(served.old).decode(turn.token_ids, skip_special_tokens=True)
    assert turn.finish_reason == "stop"
    assert json.loads(text) == {"ok": True}
