"""whippletree/learner/moe.py on a tiny Qwen3-MoE and a tiny Mixtral"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from learner_parts import (
    ADVANTAGES,
    VOCABULARY,
    WEIGHTS,
    make_branched_samples,
    make_learner,
    make_samples,
    parameters,
    same,
)
from ranks_parts import InDouble, Made, RankedInDouble, many, one_process, ranks, run_ranks, same_update

from whippletree.errors import AlignmentError, ConfigurationError
from whippletree.learner.learner import Learner
from whippletree.learner.moe import Routers, Routing, balance
from whippletree.learner.rows import Row, build_row
from whippletree.learner.scoring import row_logprobs

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "initializer_range": 0.3,
    "max_position_embeddings": 128,
}
MODELS: dict[str, Callable[[], Any]] = {
    "qwen3": lambda: transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**SHAPE, head_dim=16, num_experts=4, moe_intermediate_size=24, norm_topk_prob=True)
    ),
    "mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SHAPE, num_local_experts=4, intermediate_size=24, sliding_window=None)
    ),
}


@pytest.fixture(scope="module", params=list(MODELS))
def experts_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(f"moe-{request.param}")
    torch.manual_seed(5)
    MODELS[request.param]().save_pretrained(directory)
    return directory


def rows() -> list[Row]:
    samples = make_samples()
    return [build_row(samples[:2], ADVANTAGES, WEIGHTS), build_row(samples[2:], ADVANTAGES, WEIGHTS)]


def recorded(row: Row, *, seed: int = 1) -> torch.Tensor:
    """Two different experts for each token and layer, [T, 2, 2]."""
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(len(row.token_ids), 2, 4, generator=draw).topk(2).indices


def routing_of(learner: Learner, row: Row) -> Routing:
    """What the routers do with a row, without replay."""
    with learner.routers.run(Routing(keep=True)) as found:
        row_logprobs(learner.model, row, 1.0)
    return found


def test_without_a_recording_and_a_coefficient_nothing_changes(experts_model: Path):
    plain, routed = make_learner(experts_model), make_learner(experts_model, moe={"replay": True})
    assert plain.update(rows()).loss == routed.update(rows()).loss
    assert same(parameters(plain), parameters(routed))


def test_recorded_experts_compute_and_the_router_is_trained(experts_model: Path):
    learner = make_learner(experts_model, moe={"replay": True})
    row = rows()[0]
    own = learner.logprobs([row])[0]
    replayed = dataclasses.replace(row, routing=recorded(row))
    used: list[torch.Tensor] = []
    for module in learner.model.modules():
        if type(module).__name__.endswith("Experts"):
            module.register_forward_pre_hook(lambda _, inputs: used.append(inputs[1].clone()))
    found = learner.logprobs([replayed])[0]
    assert torch.equal(torch.stack(used, 1), recorded(row))
    assert not torch.allclose(own, found, atol=1e-3)
    gradients: list[torch.Tensor] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: gradients.extend(router.weight.grad.clone() for router in learner.routers.found)
    )
    learner.update([replayed])
    assert all(float(gradient.abs().max()) > 0 for gradient in gradients)
    assert len(gradients) == 2


def test_the_recording_of_the_own_choices_changes_nothing(experts_model: Path):
    learner = make_learner(experts_model, moe={"replay": True})
    row = rows()[1]
    choices = routing_of(learner, row).choices
    own = torch.stack([choices[layer] for layer in range(2)], 1)
    unknown = torch.full_like(own, -1)
    for column in (own, unknown, torch.where(torch.arange(len(own))[:, None, None] % 2 == 0, own, unknown)):
        found = learner.logprobs([dataclasses.replace(row, routing=column)])[0]
        torch.testing.assert_close(found, learner.logprobs([row])[0], rtol=1e-5, atol=1e-5)


def test_ranks_replay_and_balance_as_one_process_does(experts_model: Path):
    settings: dict[str, Any] = {"moe": {"replay": True, "aux_loss": 0.1}}
    samples = make_samples()
    single = [build_row([sample], ADVANTAGES, WEIGHTS) for sample in samples[:3]]
    batch = [dataclasses.replace(row, routing=recorded(row)) for row in single]
    one = one_process(experts_model, [batch, batch], settings)
    found = run_ranks(2, many, experts_model, [batch, batch], {**settings, "ranks": ranks(data=2)})
    for made in found:
        same_update(one, made, tolerance=1e-4)
    for a, b in zip(one.stats, found[0].stats, strict=True):
        assert b.loss == pytest.approx(a.loss, rel=1e-3)
        assert b.metrics["balance"] == pytest.approx(a.metrics["balance"], rel=1e-3)


def two_updates(rank: int, directory: Path, batch: list[Row], meshes: list[dict[str, int]], more: dict[str, Any]) -> list[Made]:
    """The same two updates on each mesh."""
    return [many(rank, directory, [batch, batch], {**more, "ranks": ranks(**sizes)}, RankedInDouble) for sizes in meshes]


def test_ranks_that_share_rows_or_experts_balance_and_replay_as_one_process_does(experts_model: Path):
    """A forest and rows that two ranks do not divide; of some tokens nobody recorded the routing."""
    settings: dict[str, Any] = {"moe": {"replay": True, "aux_loss": 0.1}, "activation_checkpointing": True}
    forest = build_row(make_branched_samples(), ADVANTAGES, WEIGHTS)
    batch = [dataclasses.replace(row, routing=recorded(row)) for row in (forest, rows()[0])]
    batch.append(build_row(make_samples()[:1], ADVANTAGES, WEIGHTS))
    batch[0].routing[::3] = -1
    assert forest.branched and any(len(row.token_ids) % 2 for row in batch)
    one = one_process(experts_model, [batch, batch], settings, kind=InDouble)
    without = one_process(experts_model, [batch, batch], {**settings, "moe": {"replay": True}}, kind=InDouble)
    assert one.stats[0].loss != pytest.approx(without.stats[0].loss, rel=1e-3)
    assert not same(one.weights, without.weights)
    meshes = [{"context": 2}, {"tensor": 2}]
    for made in run_ranks(2, two_updates, experts_model, batch, meshes, settings):
        for of_mesh in made:
            same_update(one, of_mesh, tolerance=1e-7)  # these routers compute their softmax in float32
            torch.testing.assert_close(of_mesh.weights, one.weights, rtol=1e-5, atol=1e-5)
            for a, b in zip(one.stats, of_mesh.stats, strict=False):  # rank 0 has them
                assert b.loss == pytest.approx(a.loss, rel=1e-6)
                assert b.metrics["balance"] == pytest.approx(a.metrics["balance"], rel=1e-6)


def test_replay_survives_recomputed_activations(experts_model: Path):
    settings: dict[str, Any] = {"moe": {"replay": True, "aux_loss": 0.1}}
    plain, recomputed = (
        make_learner(experts_model, **settings),
        make_learner(experts_model, **settings, activation_checkpointing=True),
    )
    batch = [dataclasses.replace(row, routing=recorded(row)) for row in rows()]
    assert plain.update(batch).loss == pytest.approx(recomputed.update(batch).loss, rel=1e-6)
    for a, b in zip(parameters(plain), parameters(recomputed), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_balance_term_is_that_of_transformers(experts_model: Path):
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    learner = make_learner(experts_model, moe={"aux_loss": 0.1})
    found = routing_of(learner, rows()[0])
    told = load_balancing_loss_func(tuple(found.logits[layer] for layer in range(2)), num_experts=4, top_k=2)
    torch.testing.assert_close(balance(found, 4), told)


def test_the_balance_term_is_weighted_by_tokens_and_does_not_depend_on_padding(experts_model: Path):
    learner = make_learner(experts_model, moe={"aux_loss": 0.1})
    plain = make_learner(experts_model)
    batch = rows()
    lengths = [len(row.token_ids) for row in batch]
    terms = [float(balance(routing_of(learner, row), 4).detach()) for row in batch]
    mean = sum(n * term for n, term in zip(lengths, terms, strict=True)) / sum(lengths)
    stats = learner.update(batch)
    assert stats.metrics["balance"] == pytest.approx(mean, rel=1e-5)
    assert not same(parameters(learner), parameters(plain))
    assert stats.loss == pytest.approx(plain.update(batch).loss + 0.1 * mean, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda column: column[:, :1], "2 routers of 2 choices"),
        (lambda column: column[:-1], "recorded routing of"),
        (lambda column: column + 4, "names expert"),
    ],
    ids=["layers", "tokens", "experts"],
)
def test_recordings_of_another_model_or_row_are_refused(
    experts_model: Path, change: Callable[[torch.Tensor], torch.Tensor], said: str
):
    learner = make_learner(experts_model, moe={"replay": True})
    row = rows()[0]
    before = parameters(learner)
    with pytest.raises(AlignmentError, match=said):
        learner.update([dataclasses.replace(row, routing=change(recorded(row)))])
    assert same(before, parameters(learner))


def test_a_model_without_experts_is_refused(small_model: Path):
    with pytest.raises(ConfigurationError, match="has no experts"):
        make_learner(small_model, moe={"aux_loss": 0.1})


def test_a_router_of_another_kind_is_refused():
    config = transformers.GptOssConfig(
        **{**SHAPE, "head_dim": 16, "num_local_experts": 4, "intermediate_size": 24, "layer_types": ["full_attention"] * 2}
    )
    with pytest.raises(ConfigurationError, match="GptOssTopKRouter"):
        Routers(transformers.GptOssForCausalLM(config))
