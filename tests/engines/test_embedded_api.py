"""A parameter that would change what is sampled is honoured or refused, never ignored."""

from __future__ import annotations

from typing import Any

import pytest

from whippletree.engines.embedded import api
from whippletree.errors import RequestError

LIMITS = api.Limits(vocabulary=100, context=50, eos_ids=frozenset({2}), seed=7)


def body(**changes: Any) -> api.CompletionBody:
    return api.CompletionBody(**{"prompt": [1, 3], **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 2},
        {"best_of": 3},
        {"echo": True},
        {"stop": ["\n"]},
        {"min_p": 0.1},
        {"min_tokens": 4},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"logit_bias": {"5": 1.0}},
        {"bad_words": ["x"]},
        {"logprobs": 5},
        {"prompt_logprobs": 2},
        {"prompt_logprobs": 1, "stream": True},
        {"prompt": []},
        {"prompt": [100]},
        {"prompt": [-1]},
        {"prompt": [1] * 50},
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"temperature": 1e-5},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.5},
    ],
    ids=str,
)
def test_what_cannot_be_served_exactly_is_a_400(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as raised:
        api.accept(body(**changes), "r", LIMITS)
    assert raised.value.status == 400


def test_neutral_values_and_nulls_are_accepted() -> None:
    neutral = body(
        n=1, best_of=None, stop=[], min_p=0.0, repetition_penalty=1.0, top_k=-1, temperature=None, top_p=None, max_tokens=None
    )
    sequence = api.accept(neutral, "r", LIMITS)
    sampling = sequence.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (1.0, 1.0, 0, 16)


def test_the_models_end_ids_stop_unless_they_are_ignored() -> None:
    assert api.accept(body(stop_token_ids=[9]), "r", LIMITS).stop_ids == {2, 9}
    assert api.accept(body(stop_token_ids=[9], ignore_eos=True), "r", LIMITS).stop_ids == {9}


def test_draws_depend_on_the_seed_or_else_on_engine_seed_and_request() -> None:
    def first(request_id: str, seed: int | None = None, limits: api.Limits = LIMITS) -> float:
        return api.accept(body(seed=seed), request_id, limits).uniforms.random()

    other = api.Limits(vocabulary=100, context=50, eos_ids=frozenset(), seed=8)
    assert first("a", seed=1) == first("b", seed=1) != first("a", seed=2)
    assert first("a") == first("a") != first("b")
    assert first("a") != first("a", limits=other)


def test_the_callers_prompt_is_not_shared() -> None:
    asked = body()
    api.accept(asked, "r", LIMITS).tokens.append(5)
    assert asked.prompt == [1, 3]
