"""The vLLM client on recorded replies of a real vLLM 0.32, and the parts of the adapter that need no server."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from vllm_parts import PROMPT, Recording, Replay, recording, serving, turn

from whippletree.engines.config import VllmConfig
from whippletree.engines.probe_chat import probe_features
from whippletree.engines.vllm import PLUGIN, VllmEngine, vllm_command
from whippletree.engines.vllm_plugin import whippletree_vllm as plugin
from whippletree.engines.vllm_wire import gauge, policy_version, vllm_piece
from whippletree.errors import ConfigurationError, ContextOverflow, EngineError, EngineUnavailable
from whippletree.types import ChatRequest, ChatTurn, Message, Sampling, TokenChunk, ToolSpec, VersionSpan, WeightUpdate

GENERATE = "/inference/v1/generate"
RPC = "/collective_rpc"
METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="policy"} 2.0
vllm:num_requests_running{engine="1",model_name="policy"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="policy"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="policy",reason="capacity"} 4.0
"""


def answers(**changes: Recording) -> dict[str, Recording]:
    names = ("models", "weight_info", "is_paused", "pause", "resume", "rpc_load", "reset_prefix_cache", "update_weight_version")
    kept = {kept.path: kept for kept in map(recording, (*names, "generate_stream"))}
    kept["/abort_requests"] = Recording(method="POST", path="", status=200, content_type="application/json", body="{}")
    kept["/metrics"] = Recording(method="GET", path="", status=200, content_type="text/plain", body=METRICS)
    return {**kept, **{kept.path: kept for kept in changes.values()}}


@asynccontextmanager
async def client(replay: Replay) -> AsyncIterator[VllmEngine]:
    async with serving(replay.handle) as url:
        engine = VllmEngine(url)
        try:
            yield engine
        finally:
            await engine.close()


async def turn_of(engine: VllmEngine, **sampling: Any) -> list[TokenChunk]:
    return [chunk async for chunk in engine.generate(turn(**sampling))]


def write_tensors(directory: Path, shapes: dict[str, list[int]], name: str = "model.safetensors", salt: bytes = b"") -> Path:
    """A safetensors file whose header is right and whose data is zeros, then `salt`."""
    header, offset = {}, 0
    for tensor, shape in shapes.items():
        size = 4
        for length in shape:
            size *= length
        header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset) + salt)
    return directory


# --- turns ---


@pytest.mark.parametrize("piece", [1, 65536])
async def test_a_recorded_turn_is_read_however_it_is_split(piece: int) -> None:
    async with client(Replay(answers(), piece=piece)) as engine:
        chunks = await turn_of(engine)
    assert sum(len(chunk.token_ids) for chunk in chunks) == sum(len(chunk.logprobs) for chunk in chunks) == 6
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert all(len(chunk.token_ids) == len(chunk.logprobs) for chunk in chunks)


async def test_both_routes_of_vllm_sample_the_same_for_one_seed() -> None:
    replay = Replay(answers())
    async with client(replay) as engine:
        chunks = await turn_of(engine)
    streamed = msgspec.json.decode(recording("completion_whole").body.encode())["choices"][0]["token_ids"]
    assert [token for chunk in chunks for token in chunk.token_ids] == streamed


async def test_spans_are_the_servers_own_labels() -> None:
    async with client(Replay(answers(swap=recording("generate_swap")))) as engine:
        chunks = await turn_of(engine)
    sampled = sum(len(chunk.token_ids) for chunk in chunks)
    assert sampled == 60
    first, second = chunks[-1].versions
    assert (first, second.policy_version) == (VersionSpan(start=0, policy_version=7), 8)
    assert 0 < second.start < sampled
    assert {chunk.policy_version for chunk in chunks} == {7}  # what /weight_info said at the first token


async def test_an_aborted_turn_keeps_what_was_sampled() -> None:
    async with client(Replay(answers(aborted=recording("generate_abort")))) as engine:
        chunks = await turn_of(engine)
    assert chunks[-1].finish_reason == "abort"
    assert sum(len(chunk.token_ids) for chunk in chunks) == 1
    assert chunks[-1].versions == (VersionSpan(start=0, policy_version=8),)


async def test_a_prompt_that_does_not_fit_is_refused_as_such_although_the_status_is_200() -> None:
    assert recording("generate_overflow").status == 200
    async with client(Replay(answers(overflow=recording("generate_overflow")))) as engine:
        with pytest.raises(ContextOverflow, match="request r1"):
            await turn_of(engine)


async def test_sampling_that_spoils_the_logprobs_is_refused_before_it_is_sent() -> None:
    replay = Replay(answers())
    async with client(replay) as engine:
        for spoiled in ({"top_p": 0.9}, {"top_k": 5}):
            with pytest.raises(EngineError, match="whole distribution"):
                await turn_of(engine, **spoiled)
        await turn_of(engine, top_k=-1)
    assert [path for path, _ in replay.asked if path == GENERATE] == [GENERATE]


async def test_the_request_fixes_every_sampling_knob() -> None:
    replay = Replay(answers())
    async with client(replay) as engine:
        await turn_of(engine, temperature=0.7, max_tokens=9)
    body = next(body for path, body in replay.asked if path == GENERATE)
    assert (body["request_id"], body["token_ids"], body["stream"]) == ("r1", PROMPT, True)
    fixed = {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 9, "seed": 1}
    rest = {"logprobs": 0, "ignore_eos": True, "detokenize": False, "stop_token_ids": []}
    assert body["sampling_params"] == fixed | rest


def test_logprobs_of_other_tokens_are_refused() -> None:
    event = {"token_ids": [5], "logprobs": {"content": [{"token_id": 6, "logprob": -1.0}]}}
    with pytest.raises(EngineError, match="other tokens"):
        vllm_piece(json.dumps({"choices": [event]}).encode())


def test_a_label_is_a_version_or_an_error() -> None:
    assert policy_version("default") == 0
    assert policy_version("12") == 12
    for label in ("loading", "-3", "v4", ""):
        with pytest.raises(EngineError, match="no policy version"):
            policy_version(label)


async def test_tokens_sampled_during_an_unfinished_update_are_refused() -> None:
    swap = recording("generate_swap")
    half = replace(swap, body=swap.body.replace('"version":"8"', '"version":"loading"'))
    assert half != swap
    async with client(Replay(answers(swap=half))) as engine:
        with pytest.raises(EngineError, match="did not finish"):
            await turn_of(engine)


# --- control ---


async def test_status_is_put_together_from_vllms_routes() -> None:
    async with client(Replay(answers())) as engine:
        status = await engine.status()
    assert (status.name, status.model, status.context_length) == ("vllm", "policy", 256)
    assert (status.policy_version, status.paused, status.running, status.waiting) == (7, True, 3, 4)


async def test_status_during_an_update_is_no_version() -> None:
    label = replace(recording("weight_info"), body='{"weight_version": "loading"}')
    async with client(Replay(answers(label=label))) as engine:
        assert (await engine.status()).policy_version == -1


def test_a_gauge_that_is_absent_is_zero() -> None:
    assert gauge(METRICS, "vllm:num_requests_waiting") == 4
    assert gauge("", "vllm:num_requests_waiting") == 0


async def test_pause_keeps_requests_and_abort_names_them_as_vllm_does() -> None:
    replay = Replay(answers())
    async with client(replay) as engine:
        await engine.pause()
        await engine.resume()
        await engine.abort("r1")
    assert replay.asked == [
        ("/pause?mode=keep", None),
        ("/resume", None),
        ("/abort_requests", {"request_ids": ["generate-tokens-r1"]}),
    ]


def loaded(directory: Path) -> Recording:
    """The recorded reply of a load, with the checksum of this directory."""
    body = json.dumps(
        {"results": [{"checksum": plugin.checksum(plugin.weight_files(str(directory))), "tensors": 2, "repacked": 1}]}
    )
    return replace(recording("rpc_load"), body=body)


async def test_an_update_labels_loads_drops_caches_and_labels_in_this_order(tmp_path: Path) -> None:
    directory = write_tensors(tmp_path / "new", {"a": [2, 3]})
    replay = Replay(answers(load=loaded(directory)))
    async with client(replay) as engine:
        await engine.update_weights(WeightUpdate(directory=str(directory), policy_version=9))
    assert replay.asked == [
        ("/weight_info", None),
        ("/update_weight_version", {"new_version": "loading"}),
        (RPC, {"method": "whippletree_load", "args": [str(directory)]}),
        ("/reset_prefix_cache?reset_running_requests=true", None),
        ("/update_weight_version", {"new_version": "9"}),
    ]


@pytest.mark.parametrize(
    ("failing", "kind"),
    [
        (recording("rpc_failure"), EngineError),
        (replace(recording("rpc_failure"), status=503, body="away"), EngineUnavailable),
        (recording("rpc_load"), EngineError),  # the checksum of other files
        (replace(recording("reset_prefix_cache"), body='{"success": false}'), EngineError),
    ],
)
async def test_an_update_that_fails_leaves_the_label_loading(
    tmp_path: Path, failing: Recording, kind: type[EngineError]
) -> None:
    directory = write_tensors(tmp_path / "new", {"a": [2, 3]})
    replay = Replay({**answers(load=loaded(directory)), failing.path: failing})
    async with client(replay) as engine:
        with pytest.raises(EngineError) as caught:
            await engine.update_weights(WeightUpdate(directory=str(directory), policy_version=9))
    assert type(caught.value) is kind
    labels = [body["new_version"] for path, body in replay.asked if path == "/update_weight_version"]
    assert labels == ["loading"]


async def test_an_update_that_every_worker_refuses_restores_the_label(tmp_path: Path) -> None:
    directory = write_tensors(tmp_path / "new", {"a": [2, 3]})
    replay = Replay(answers(load=recording("rpc_refused")))
    async with client(replay) as engine:
        with pytest.raises(EngineError, match="refused"):
            await engine.update_weights(WeightUpdate(directory=str(directory), policy_version=9))
    labels = [body["new_version"] for path, body in replay.asked if path == "/update_weight_version"]
    assert labels == ["loading", "7"]


async def test_a_directory_without_weights_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    replay = Replay(answers())
    async with client(replay) as engine:
        with pytest.raises(EngineError, match="safetensors"):
            await engine.update_weights(WeightUpdate(directory=str(tmp_path), policy_version=9))
    assert replay.asked == []


# --- the worker extension ---


class Runner:
    """Stands where vLLM's model runner does: remembers what it was told to load."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def reload_weights(self, weights_path: str) -> None:
        self.loaded.append(weights_path)

    def get_model(self) -> Runner:
        return self

    def modules(self) -> list[object]:
        return []


def loader(model: Path) -> plugin.WeightLoader:
    worker = plugin.WeightLoader()
    worker.model_runner = Runner()
    worker.model_config = replace(VllmConfig(), model=str(model))
    return worker


def test_a_directory_with_the_models_tensors_is_loaded_with_or_without_its_tied_head(tmp_path: Path) -> None:
    shapes = {"embed.weight": [8, 4], "norm.weight": [4]}
    worker = loader(write_tensors(tmp_path / "old", shapes))
    for number, more in enumerate(({}, {"lm_head.weight": [8, 4]})):
        directory = write_tensors(tmp_path / f"new-{number}", {**shapes, **more})
        reply = worker.whippletree_load(str(directory))
        assert reply["checksum"] == plugin.checksum(plugin.weight_files(str(directory)))
        assert worker.model_runner.loaded[-1] == str(directory)


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ({}, "no \\*.safetensors"),
        ({"embed.weight": [8, 4]}, "norm.weight"),
        ({"embed.weight": [8, 4], "norm.weight": [5]}, "norm.weight has shape \\[5\\]"),
        ({"embed.weight": [8, 4], "norm.weight": [4], "extra": [1]}, "extra"),
    ],
)
def test_a_directory_with_other_tensors_is_refused_and_nothing_is_loaded(
    tmp_path: Path, shapes: dict[str, list[int]], problem: str
) -> None:
    import re

    worker = loader(write_tensors(tmp_path / "old", {"embed.weight": [8, 4], "norm.weight": [4]}))
    reply = worker.whippletree_load(str(write_tensors(tmp_path / "new", shapes)))
    assert re.search(problem, reply["refused"])
    assert worker.model_runner.loaded == []


def test_tensors_may_be_spread_over_files_and_every_byte_counts(tmp_path: Path) -> None:
    directory = write_tensors(tmp_path, {"a": [2]}, "model-1.safetensors")
    write_tensors(tmp_path, {"b": [3, 1]}, "model-2.safetensors")
    files = plugin.weight_files(str(directory))
    assert plugin.tensor_shapes(files) == {"a": [2], "b": [3, 1]}
    before = plugin.checksum(files)
    write_tensors(tmp_path, {"b": [3, 1]}, "model-2.safetensors", salt=b"\0")
    assert plugin.checksum(files) != before


# --- starting a server ---


def test_the_command_has_the_flags_that_the_adapter_relies_on() -> None:
    config = VllmConfig(
        python="/v/bin/python", model="/m", port=8123, context=512, arguments=["--seed=3"], environment={"A": "1"}
    )
    command = vllm_command(config)
    assert command.argv[:3] == ("/v/bin/python", "-m", "vllm.entrypoints.openai.api_server")
    needed = {"--model=/m", "--port=8123", "--host=127.0.0.1", "--served-model-name=policy", "--max-model-len=512", "--seed=3"}
    relied = {"--logprobs-mode=processed_logprobs", "--generation-config=vllm", "--enable-scale-out"}
    assert needed | relied | {"--worker-extension-cls=whippletree_vllm.WeightLoader"} <= set(command.argv)
    assert "--enforce-eager" in command.argv
    assert "--enforce-eager" not in vllm_command(replace(config, eager=False)).argv
    assert command.argv[-1] == "--seed=3"  # the user's arguments come last, so they win
    assert command.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert command.environment["A"] == "1"
    assert command.environment["PYTHONPATH"] == str(PLUGIN)
    assert (PLUGIN / "whippletree_vllm.py").exists()


def test_the_plugin_folder_adds_no_module_that_could_hide_another() -> None:
    assert {path.name for path in PLUGIN.glob("*.py")} == {"__init__.py", "whippletree_vllm.py"}


@pytest.mark.parametrize("missing", ["python", "model"])
def test_what_a_started_server_needs_is_asked_for(missing: str) -> None:
    settings = {"python": "/v/bin/python", "model": "/m"}
    del settings[missing]
    with pytest.raises(ConfigurationError, match=f"engine.{missing}"):
        vllm_command(VllmConfig(**settings))


# --- the chat endpoint ---


CHAT = ChatTurn(
    request_id="c-1-1",
    request=ChatRequest(
        model="x", messages=(Message(role="user", content="the trail starts"),), tools=(ToolSpec(name="note"),)
    ),
    sampling=Sampling(max_tokens=6, seed=1),
)


@pytest.mark.parametrize("piece", [1, 65536])
async def test_a_recorded_chat_is_told_in_ids_however_it_is_split(piece: int) -> None:
    replay = Replay({**answers(), "/v1/chat/completions": recording("chat_stream")}, piece=piece)
    async with client(replay) as engine:
        chunks = [chunk async for chunk in engine.chat(CHAT)]
    ids = [token for chunk in chunks for token in chunk.token_ids]
    assert ids[:3] == [207, 129, 91]
    assert len(ids) == sum(len(chunk.logprobs) for chunk in chunks) == chunks[-1].sampled_tokens == 6
    assert [chunk.prompt_ids for chunk in chunks if chunk.prompt_ids] == [[1, 87, 85, 71, 84, 201, 263, 288, 297, 2, 201]]
    assert chunks[0].prompt_ids
    assert {chunk.policy_version for chunk in chunks} == {7}
    assert not any(chunk.deltas for chunk in chunks)
    (body,) = [body for path, body in replay.asked if path == "/v1/chat/completions"]
    wanted = {"return_token_ids": True, "logprobs": True, "stream": True, "request_id": "c-1-1", "model": "policy"}
    assert {key: body[key] for key in wanted} == wanted


async def test_a_server_without_a_tool_parser_says_so_and_the_probe_believes_it() -> None:
    refused = Replay({**answers(), "/v1/chat/completions": recording("chat_tools_refused")})
    async with client(refused) as engine:
        with pytest.raises(EngineError, match="--enable-auto-tool-choice"):
            [chunk async for chunk in engine.chat(CHAT)]
        assert await probe_features(engine) == (False, False)
