"""The engine's loop: admission, sharing, weight swaps, ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_parts import Models, make_core, make_sequence
from suite import Reference, prompt_of

from whippletree.engines.embedded.architecture import read_architecture
from whippletree.engines.embedded.core import EngineCore
from whippletree.engines.embedded.forward import Batch
from whippletree.engines.embedded.sequence import Sequence
from whippletree.engines.embedded.weights import Weights, load_weights
from whippletree.errors import EngineError

TOLERANCE = 1e-5


def finish(core: EngineCore, steps: int = 2000) -> None:
    for _ in range(steps):
        if not core.busy:
            return
        core.step()
    pytest.fail("the engine did not finish")


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Every batch that is computed; the forward pass itself is the real one."""
    from whippletree.engines.embedded.forward import Forward

    seen: list[Batch] = []
    real = Forward.run

    def run(self: Forward, weights: Weights, batch: Batch) -> torch.Tensor:
        seen.append(batch)
        return real(self, weights, batch)

    monkeypatch.setattr(Forward, "run", run)
    return seen


def check(reference: Reference, directory: str, sequence: Sequence, first: int = 0, last: int | None = None) -> None:
    """The logprobs of sampled tokens first..last-1 are those of the weights in `directory`."""
    expected = reference(directory, sequence.tokens, sequence.sampling.temperature or 1.0)[sequence.prompt_length - 1 :]
    assert sequence.logprobs[first:last] == pytest.approx(expected[first:last], abs=TOLERANCE)


def test_requests_are_admitted_in_order_of_arrival(models: Callable[[str], Models]) -> None:
    core = make_core(models("qwen3").old, slots=2)
    sequences = [make_sequence(f"r{i}", prompt_of(5, i), max_tokens=3 + 5 * (i == 0)) for i in range(5)]
    for sequence in sequences:
        core.submit(sequence)
    order: list[str] = []
    while core.busy:
        order += [sequence.request_id for sequence in core.step() if sequence.sampled == 1]
        assert core.running <= 2
    assert order == ["r0", "r1", "r2", "r3", "r4"]
    assert [sequence.finish_reason for sequence in sequences] == ["length"] * 5


def test_a_common_beginning_that_arrives_together_is_computed_once(
    models: Callable[[str], Models], reference: Reference, batches: list[Batch]
) -> None:
    directory = models("qwen3").old
    core = make_core(directory, slots=8)
    common = prompt_of(50, 1)
    sequences = [make_sequence(f"r{i}", [*common, *prompt_of(6, i)], max_tokens=5) for i in range(6)]
    for sequence in sequences:
        core.submit(sequence)
    finish(core)
    prefilled = sum(piece.count for batch in batches for piece in batch.pieces)
    assert prefilled == 56 + 5 * 6
    assert [sequence.cached for sequence in sequences] == [0, *[50] * 5]
    for sequence in sequences:
        check(reference, directory, sequence)


def test_decoding_requests_with_a_common_beginning_read_it_once(models: Callable[[str], Models], batches: list[Batch]) -> None:
    core = make_core(models("qwen3").old, slots=8)
    for index in range(5):
        core.submit(make_sequence(f"r{index}", [*prompt_of(60, 1), *prompt_of(6, index)], max_tokens=6))
    finish(core)
    assert max(batch.shared for batch in batches) == 60


def test_a_step_computes_no_more_prompt_than_allowed_and_every_decoding_request(
    models: Callable[[str], Models], batches: list[Batch]
) -> None:
    core = make_core(models("llama").old, slots=4, prefill_tokens=16)
    first = make_sequence("first", prompt_of(4, 1), max_tokens=100)
    core.submit(first)
    core.step()
    core.submit(make_sequence("long", prompt_of(140, 2), max_tokens=2))
    core.submit(make_sequence("short", prompt_of(6, 3), max_tokens=2))
    sampled = first.sampled
    for index in range(8):
        core.step()
        assert first.sampled == sampled + 1 + index
    assert all(sum(piece.count for piece in batch.pieces) <= 16 for batch in batches)


def test_the_end_of_the_awaited_request_does_not_strand_the_waiting_one(
    models: Callable[[str], Models], reference: Reference
) -> None:
    directory = models("llama").old
    core = make_core(directory, slots=4, prefill_tokens=16)
    leader = make_sequence("leader", prompt_of(100, 1), max_tokens=5)
    follower = make_sequence("follower", [*prompt_of(90, 1), 7, 8, 9], max_tokens=5)
    core.submit(leader)
    core.submit(follower)
    core.step()
    core.step()
    assert core.abort("leader") is leader
    core.submit(make_sequence("squatter", prompt_of(120, 4), max_tokens=5))
    finish(core)
    assert 0 < follower.cached < 90
    check(reference, directory, follower)


def test_every_token_after_a_swap_is_of_the_new_weights(models: Callable[[str], Models], reference: Reference) -> None:
    pair = models("qwen3")
    core = make_core(pair.old, slots=4, prefill_tokens=32)
    common = prompt_of(40, 1)
    running = [make_sequence(f"r{i}", [*common, *prompt_of(4, i)], max_tokens=30, temperature=0.7) for i in range(4)]
    waiting = make_sequence("waiting", prompt_of(20, 9), max_tokens=5)
    for sequence in (*running, waiting):
        core.submit(sequence)
    for _ in range(12):
        core.step()
    sampled = [sequence.sampled for sequence in running]
    assert min(sampled) > 0
    core.swap(load_weights(Path(pair.new), read_architecture(Path(pair.new)), torch.float32, 5))
    finish(core)
    for sequence, cut in zip(running, sampled, strict=True):
        assert [(span.start, span.policy_version) for span in sequence.spans] == [(0, 0), (cut, 5)]
        check(reference, pair.old, sequence, 0, cut)
        check(reference, pair.new, sequence, cut)
    assert [span.policy_version for span in waiting.spans] == [5]
    check(reference, pair.new, waiting)


def test_prompt_scores_ignore_the_cache_and_survive_a_swap(models: Callable[[str], Models], reference: Reference) -> None:
    pair = models("llama")
    core = make_core(pair.old, prefill_tokens=16)
    prompt = prompt_of(90, 3)
    warm = make_sequence("warm", prompt, max_tokens=2)
    core.submit(warm)
    finish(core)
    score = make_sequence("score", prompt, score=True, max_tokens=1)
    core.submit(score)
    core.step()
    core.swap(load_weights(Path(pair.new), read_architecture(Path(pair.new)), torch.float32, 1))
    finish(core)
    assert score.cached == 0
    assert score.prompt_logprobs == pytest.approx(reference(pair.new, prompt, 1.0), abs=TOLERANCE)


def test_an_aborted_request_leaves_a_usable_cache(models: Callable[[str], Models], reference: Reference) -> None:
    directory = models("qwen3").old
    core = make_core(directory, slots=2)
    first = make_sequence("first", prompt_of(30, 1), max_tokens=50)
    core.submit(first)
    for _ in range(10):
        core.step()
    assert core.abort("first") is first
    assert core.abort("first") is None
    again = make_sequence("again", first.tokens, max_tokens=10)
    core.submit(again)
    finish(core)
    assert again.cached == len(first.tokens) - 1 - (len(first.tokens) - again.prompt_length)
    check(reference, directory, again)


def test_aborting_a_waiting_request_removes_it(models: Callable[[str], Models]) -> None:
    core = make_core(models("qwen3").old, slots=1)
    first, second = (make_sequence(name, prompt_of(5, 1), max_tokens=4) for name in ("first", "second"))
    core.submit(first)
    core.submit(second)
    core.step()
    assert core.waiting == 1
    assert core.abort("second") is second
    finish(core)
    assert (first.finish_reason, second.finish_reason, second.sampled) == ("length", "abort", 0)


def test_the_context_ends_an_answer(models: Callable[[str], Models]) -> None:
    core = make_core(models("qwen3").old, context=40)
    sequence = make_sequence("r", prompt_of(39, 1), max_tokens=50)
    core.submit(sequence)
    finish(core)
    assert (sequence.sampled, sequence.finish_reason) == (1, "length")


def test_weights_that_give_no_finite_logits_end_requests_with_an_error(models: Callable[[str], Models]) -> None:
    core = make_core(models("llama").old)
    core.weights.head.fill_(torch.nan)
    sequence = make_sequence("r", prompt_of(5, 1), max_tokens=5)
    core.submit(sequence)
    finish(core)
    assert isinstance(sequence.error, EngineError)
    assert "version 0" in str(sequence.error)
    assert sequence.sampled == 0


def test_drain_returns_everything_unfinished(models: Callable[[str], Models]) -> None:
    core = make_core(models("llama").old, slots=1)
    sequences = [make_sequence(f"r{i}", prompt_of(5, i), max_tokens=5) for i in range(3)]
    for sequence in sequences:
        core.submit(sequence)
    core.step()
    assert core.drain() == sequences
    assert not core.busy
