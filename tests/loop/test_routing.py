"""Routing from the sampler to the learner: a real embedded engine with experts, a real gateway, the store, samples, rows"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from engine_parts import build, embedded_process
from loop_parts import SECRET, VOCABULARY, gateway_on_thread
from recorded_run import write_tokenizer

from whippletree.errors import AlignmentError
from whippletree.gateway.client import GatewayControl
from whippletree.gateway.keys import control_key, mint
from whippletree.learner.config import LearnerConfig, MoEConfig
from whippletree.learner.learner import Learner
from whippletree.learner.moe import Routing
from whippletree.learner.rows import Row
from whippletree.learner.scoring import row_logprobs
from whippletree.loop.batch import Batch, build_batch
from whippletree.protocols import AttemptOutcome
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.store import RecordStore, open_store
from whippletree.traces import TracesConfig, build_samples, load_trace
from whippletree.types import RolloutSpec, Sampling, VerifierResult

CONFIG = LearnerConfig(token_budget=512, moe=MoEConfig(replay=True))
SPECS = [
    RolloutSpec(
        rollout_id=f"g0-m0{n}", group_id="g0", source="s", task_id="t", task_path="/t", harness="h",
        sampling=Sampling(max_tokens=12),
    )
    for n in range(2)
]  # fmt: skip


def ask(url: str, key: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """One call of a harness, over HTTP."""
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", body, headers), timeout=60) as answer:
        return json.loads(answer.read())["choices"][0]["message"]


def converse(url: str, key: str) -> None:
    """Two calls of one conversation."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Start."}]
    for text in ("Go on.", ""):
        reply = ask(url, key, messages)
        messages += [{"role": "assistant", "content": reply.get("content") or ""}, {"role": "user", "content": text}]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, RecordStore]]:
    """The model, and a store with two finished rollouts that it sampled."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("routing")
    model = Path(build(root / "model", "qwen3-moe", 3, vocab_size=VOCABULARY))
    renderer = load_renderer(write_tokenizer(model), RenderingConfig(template="tiny"))
    with (
        embedded_process(str(model), root) as (engine_url, _),
        gateway_on_thread(root / "store", engine_url, renderer) as url,
        open_store(root / "store", instance="controller") as store,
    ):
        control = GatewayControl(url, control_key(SECRET))
        store.create_rollouts(SPECS).result()
        for attempt in store.claim("w", 2).result():
            converse(url, mint(SECRET, attempt.rollout_id, attempt.attempt))
            control.seal(attempt.rollout_id, attempt.attempt)  # then the last delivery is on record too
            result = VerifierResult(reward=float(attempt.rollout_id[-1]))
            store.finish(AttemptOutcome(attempt=msgspec.structs.replace(attempt, finished=2.0, result=result))).result()
        yield model, store


def batch_of(store: RecordStore, config: LearnerConfig = CONFIG) -> Batch:
    return build_batch(store, store.rollouts(), config, policy_version=0)


def routed(learner: Learner, row: Row, replay: torch.Tensor | None = None) -> Routing:
    """What the routers do with a row."""
    assert learner.routers is not None
    with torch.no_grad(), learner.routers.run(Routing(replay=replay, keep=True)) as found:
        row_logprobs(learner.model, row, 1.0)
    return found


def chosen(found: Routing) -> torch.Tensor:
    """[T, layers, k], sorted."""
    return torch.stack([found.choices[layer] for layer in sorted(found.choices)], 1).sort(-1).values


def test_the_rows_have_the_experts_that_the_sampler_used(recorded: tuple[Path, RecordStore]):
    model, store = recorded
    batch = batch_of(store)
    assert batch.rows and batch.alarms == ()
    learner = Learner(model, CONFIG, temperature=1.0)
    for row in batch.rows:
        assert row.routing is not None and row.routing.shape == (len(row.token_ids), 3, 2)
        known = (row.routing >= 0).all(-1).all(-1)
        assert int((~known).sum()) == 1 or int((~known).sum()) == len(row.sample_ids)  # the last token of each sample alone
        own = chosen(routed(learner, row))  # the same weights, so the same choices
        assert torch.equal(row.routing[known].long().sort(-1).values, own[known])


def test_replay_routes_the_learner_as_the_sampler_was_whatever_the_weights_are_now(recorded: tuple[Path, RecordStore]):
    model, store = recorded
    learner = Learner(model, CONFIG, temperature=1.0)
    (row, *_) = batch_of(store).rows
    assert row.routing is not None
    with torch.no_grad():
        for router in learner.routers.found:  # type: ignore[union-attr]
            router.weight.add_(0.5 * torch.randn_like(router.weight))
    known = (row.routing >= 0).all(-1).all(-1)
    recorded_choices = row.routing.long().sort(-1).values
    assert not torch.equal(chosen(routed(learner, row))[known], recorded_choices[known])
    assert torch.equal(chosen(routed(learner, row, row.routing))[known], recorded_choices[known])


def test_an_update_replays_and_agrees_with_the_sampler(recorded: tuple[Path, RecordStore]):
    model, store = recorded
    stats = Learner(model, CONFIG, temperature=1.0).update(batch_of(store).rows)
    assert stats.compared_tokens > 0
    assert stats.logprob_max_abs_diff < 2e-4


def test_without_replay_rows_carry_none(recorded: tuple[Path, RecordStore]):
    _, store = recorded
    plain = batch_of(store, LearnerConfig(token_budget=512))
    assert plain.rows and all(row.routing is None for row in plain.rows)


def test_a_sampled_tokens_routing_is_that_of_its_own_call(recorded: tuple[Path, RecordStore]):
    """Of two calls that computed the same tokens under other weights, the first one's stays."""
    _, store = recorded
    rollout = store.rollouts()[0]
    trace = load_trace(store, rollout, TracesConfig())
    first, second = trace.nodes
    assert second.parent == first.call_id
    assert first.experts is not None and second.experts is not None
    marked = np.zeros(second.experts.shape, "<i2") + 5
    changed = msgspec.structs.replace(second, experts=msgspec.structs.replace(second.experts, data=marked.tobytes()))
    (sample,) = build_samples(type(trace)(by_id={first.call_id: first, second.call_id: changed}), rollout.spec, routing=True)
    assert sample.routing is not None
    computed = first.experts.shape[0]  # all tokens of the first call but its last
    np.testing.assert_array_equal(
        sample.routing[:computed], np.frombuffer(first.experts.data, "<i2").reshape(first.experts.shape)
    )
    assert (sample.routing[computed:-1] == 5).all()
    assert (sample.routing[-1] == -1).all()  # nobody computed the last token
    other = msgspec.structs.replace(second.experts, shape=(second.experts.shape[0], 6, 1))
    odd = msgspec.structs.replace(second, experts=other)
    with pytest.raises(AlignmentError, match="another of its path"):
        build_samples(type(trace)(by_id={first.call_id: first, second.call_id: odd}), rollout.spec, routing=True)
