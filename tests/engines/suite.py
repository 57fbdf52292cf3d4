"""What every engine must do, whatever it is made of. A test module subclasses EngineSuite and provides two fixtures:
`engine`, a fresh client of a running engine with the weights `served.old`, and `served`, what that engine serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import pytest

from whippletree.errors import ContextOverflow, EngineError
from whippletree.protocols import Engine
from whippletree.types import GenerateRequest, Sampling, TokenChunk, VersionSpan, WeightUpdate

Reference = Callable[[str, Sequence[int], float], list[float]]


@dataclass(frozen=True)
class Served:
    """What an engine under test serves. `old` and `new` are weight directories of one architecture; `tolerance` is the largest
    logprob difference (nats) that its number type explains; `reference` gives logprobs of ids[1:] under a directory's weights
    at a temperature, computed by someone else; `cache_block` is the granularity of its prefix cache in tokens."""

    vocabulary: int
    context: int
    old: str
    new: str
    tolerance: float
    reference: Reference | None = None
    cache_block: int = 1

    @property
    def long(self) -> int:
        """Tokens of a turn that is still going when the next requests reach the engine: several seconds of them, or nearly.
        Nothing waits for its end."""
        return self.context - 64

    @property
    def part(self) -> int:
        """Tokens from the beginning of such a turn that are compared."""
        return min(256, self.long // 2)


@dataclass(frozen=True)
class Turn:
    """One finished turn, its chunks joined."""

    prompt: list[int]
    token_ids: list[int]
    logprobs: list[float]
    spans: list[VersionSpan]
    finish_reason: str | None
    cached_tokens: int


def request(name: str, prompt: Sequence[int], *, stop: Sequence[int] = (), **sampling: object) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        prompt_ids=list(prompt),
        sampling=Sampling(**sampling),  # type: ignore[arg-type]
        stop_token_ids=list(stop),
    )


def join(asked: GenerateRequest, chunks: Sequence[TokenChunk]) -> Turn:
    """Join chunks, checking what must hold for each of them."""
    ids: list[int] = []
    logprobs: list[float] = []
    spans: list[VersionSpan] = []
    for chunk in chunks:
        assert len(chunk.token_ids) == len(chunk.logprobs)
        if chunk.token_ids and (not spans or spans[-1].policy_version != chunk.policy_version):
            spans.append(VersionSpan(start=len(ids), policy_version=chunk.policy_version))
        ids += chunk.token_ids
        logprobs += chunk.logprobs
    assert [chunk.finish_reason is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    last = chunks[-1]
    return Turn(asked.prompt_ids, ids, logprobs, list(last.versions) or spans, last.finish_reason, last.cached_tokens)


async def chunks_of(stream: AsyncIterator[TokenChunk]) -> list[TokenChunk]:
    return [chunk async for chunk in stream]


async def collect(stream: AsyncIterator[TokenChunk], chunks: list[TokenChunk]) -> None:
    async for chunk in stream:
        chunks.append(chunk)


def count(chunks: Sequence[TokenChunk], version: int | None = None) -> int:
    """Tokens, of one policy version or of all."""
    return sum(len(chunk.token_ids) for chunk in chunks if version in (None, chunk.policy_version))


async def run(engine: Engine, asked: GenerateRequest) -> Turn:
    return join(asked, await chunks_of(engine.generate(asked)))


def prompt_of(length: int, salt: int = 1, vocabulary: int = 256) -> list[int]:
    """A prompt that looks like nothing in particular and differs between salts from its first token on."""
    return [(salt * 37 + index * index * 11 + index * salt) % (vocabulary - 8) + 4 for index in range(length)]


def close(a: Sequence[float], b: Sequence[float], tolerance: float) -> bool:
    return len(a) == len(b) and all(abs(x - y) <= tolerance for x, y in zip(a, b, strict=True))


async def idle(engine: Engine) -> bool:
    """True once the engine has nothing in flight; False if that does not come."""
    for _ in range(2400):
        status = await engine.status()
        if not status.running and not status.waiting:
            return True
        await asyncio.sleep(0.025)
    return False


async def scored(engine: Engine, turn: Turn) -> list[float]:
    """The engine's own score of the sampled ids of a turn."""
    return (await engine.score([*turn.prompt, *turn.token_ids]))[len(turn.prompt) - 1 :]


class EngineSuite:
    """The shared behaviours. Names of requests differ between tests, since an engine may outlive a test."""

    def test_it_satisfies_the_protocol(self, engine: Engine) -> None:
        assert isinstance(engine, Engine)

    async def test_every_id_has_a_logprob_and_the_turn_has_one_end(self, engine: Engine, served: Served) -> None:
        turn = await run(engine, request("shape", prompt_of(9), max_tokens=12))
        assert len(turn.token_ids) == len(turn.logprobs) == 12
        assert turn.finish_reason == "length"
        assert all(logprob <= 0.0 for logprob in turn.logprobs)
        assert all(0 <= token < served.vocabulary for token in turn.token_ids)

    async def test_logprobs_are_the_scores_of_the_ids(self, engine: Engine, served: Served) -> None:
        turn = await run(engine, request("scores", prompt_of(17, 2), max_tokens=20, temperature=1.0))
        assert close(turn.logprobs, await scored(engine, turn), served.tolerance)

    @pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
    async def test_logprobs_are_those_of_the_reference(self, engine: Engine, served: Served, temperature: float) -> None:
        if served.reference is None:
            pytest.skip("this engine has no model that someone else could compute")
        turn = await run(engine, request(f"reference-{temperature}", prompt_of(21, 3), max_tokens=24, temperature=temperature))
        expected = served.reference(served.old, [*turn.prompt, *turn.token_ids], temperature or 1.0)
        assert close(turn.logprobs, expected[len(turn.prompt) - 1 :], served.tolerance)

    async def test_truncated_sampling_reports_full_logprobs(self, engine: Engine, served: Served) -> None:
        turn = await run(engine, request("top-k", prompt_of(11, 4), max_tokens=12, top_k=2, top_p=0.9, seed=3))
        assert close(turn.logprobs, await scored(engine, turn), served.tolerance)

    async def test_top_k_of_one_is_greedy(self, engine: Engine) -> None:
        greedy = await run(engine, request("greedy-0", prompt_of(8, 5), max_tokens=10, temperature=0.0))
        again = await run(engine, request("greedy-1", prompt_of(8, 5), max_tokens=10, temperature=0.0))
        top_one = await run(engine, request("greedy-2", prompt_of(8, 5), max_tokens=10, temperature=1.0, top_k=1))
        assert greedy.token_ids == again.token_ids == top_one.token_ids

    async def test_a_seed_fixes_the_answer_alone_and_in_a_crowd(self, engine: Engine) -> None:
        asked = {"max_tokens": 16, "temperature": 1.0, "seed": 11}
        alone = await run(engine, request("seed-alone", prompt_of(12, 6), **asked))
        crowd = [run(engine, request(f"crowd-{i}", prompt_of(5 + i, i), max_tokens=16, seed=i)) for i in range(12)]
        among, *_ = await asyncio.gather(run(engine, request("seed-crowd", prompt_of(12, 6), **asked)), *crowd)
        other = await run(engine, request("seed-other", prompt_of(12, 6), **{**asked, "seed": 12}))
        assert alone.token_ids == among.token_ids != other.token_ids

    async def test_a_stop_id_ends_the_turn_and_is_part_of_it(self, engine: Engine) -> None:
        free = await run(engine, request("stop-free", prompt_of(10, 7), max_tokens=16, seed=5))
        stop = free.token_ids[6]
        turn = await run(engine, request("stop", prompt_of(10, 7), stop=[stop], max_tokens=16, seed=5))
        assert turn.finish_reason == "stop"
        assert turn.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]

    async def test_a_stop_id_on_the_last_allowed_token_is_a_stop(self, engine: Engine) -> None:
        free = await run(engine, request("edge-free", prompt_of(10, 8), max_tokens=4, seed=6))
        asked = request("edge", prompt_of(10, 8), stop=[free.token_ids[-1]], max_tokens=4, seed=6)
        assert (await run(engine, asked)).finish_reason == "stop"

    async def test_abort_ends_one_request_and_no_other(self, engine: Engine, served: Served) -> None:
        asked = request("aborted", prompt_of(7, 9), max_tokens=served.long)
        other = asyncio.create_task(run(engine, request("unharmed", prompt_of(7, 10), max_tokens=40)))
        chunks: list[TokenChunk] = []
        async for chunk in engine.generate(asked):
            if not chunks:
                await engine.abort("aborted")
            chunks.append(chunk)
        turn = join(asked, chunks)
        assert turn.finish_reason == "abort"
        assert len(turn.token_ids) < served.long
        assert (await other).finish_reason == "length"
        assert await idle(engine)

    async def test_aborting_an_unknown_id_is_ignored(self, engine: Engine) -> None:
        await engine.abort("nobody")
        assert (await run(engine, request("after-nobody", prompt_of(5), max_tokens=2))).finish_reason == "length"

    async def test_closing_the_iterator_aborts_the_request(self, engine: Engine, served: Served) -> None:
        stream = engine.generate(request("closed", prompt_of(7, 11), max_tokens=served.long))
        assert (await anext(stream)).token_ids
        await stream.aclose()  # type: ignore[attr-defined]
        assert await idle(engine)

    async def test_a_pause_is_not_seen_in_the_answer(self, engine: Engine, served: Served) -> None:
        free = await run(engine, request("unpaused", prompt_of(13, 12), max_tokens=served.part, seed=8))
        paused = request("paused", prompt_of(13, 12), max_tokens=served.long, seed=8)
        stream = engine.generate(paused)
        chunks = [await anext(stream)]
        rest = asyncio.create_task(collect(stream, chunks))
        await engine.pause()
        try:
            assert (await engine.status()).paused
            late = asyncio.create_task(run(engine, request("late", prompt_of(6, 13), max_tokens=4)))
            await asyncio.sleep(0.1)
            assert not rest.done()
            assert not late.done()
        finally:
            await engine.resume()
        while count(chunks) < served.part and not rest.done():
            await asyncio.sleep(0.01)
        await engine.abort("paused")
        await rest
        turn = join(paused, chunks)
        assert turn.token_ids[: served.part] == free.token_ids
        assert close(turn.logprobs[: served.part], free.logprobs, served.tolerance)
        assert (await late).finish_reason == "length"
        assert not (await engine.status()).paused

    async def test_new_weights_take_over_in_the_middle_of_a_turn(self, engine: Engine, served: Served) -> None:
        before = (await engine.status()).policy_version
        asked = request("swapped", prompt_of(30, 14), max_tokens=served.long)
        stream = engine.generate(asked)
        chunks = [await anext(stream)]
        await engine.pause()
        await engine.update_weights(WeightUpdate(directory=served.new, policy_version=before + 1))
        await engine.resume()
        rest = asyncio.create_task(collect(stream, chunks))
        while count(chunks, before + 1) < served.part and not rest.done():
            await asyncio.sleep(0.01)
        await engine.abort("swapped")
        await rest
        turn = join(asked, chunks)
        new = await scored(engine, turn)
        assert (await engine.status()).policy_version == before + 1
        await engine.update_weights(WeightUpdate(directory=served.old, policy_version=before + 2))
        old = await scored(engine, turn)

        assert [span.policy_version for span in turn.spans] == [before, before + 1]
        change = turn.spans[1].start
        assert 0 < change < served.long
        assert close(turn.logprobs[:change], old[:change], served.tolerance)
        assert close(turn.logprobs[change:], new[change:], served.tolerance)
        assert not close(old[change:], new[change:], served.tolerance)

    async def test_a_second_turn_reuses_the_first_and_scores_the_same(self, engine: Engine, served: Served) -> None:
        first = await run(engine, request("turn-1", prompt_of(64, 15), max_tokens=24))
        prompt = [*first.prompt, *first.token_ids, *prompt_of(5, 16)]
        second = await run(engine, request("turn-2", prompt, max_tokens=24))
        computed = len(first.prompt) + len(first.token_ids) - 1
        assert computed - served.cache_block < second.cached_tokens <= computed
        assert close(second.logprobs, await scored(engine, second), served.tolerance)

    async def test_nothing_is_reused_after_a_weight_update(self, engine: Engine, served: Served) -> None:
        version = (await engine.status()).policy_version
        await run(engine, request("stale-1", prompt_of(48, 17), max_tokens=2))
        await engine.update_weights(WeightUpdate(directory=served.old, policy_version=version + 1))
        assert (await run(engine, request("stale-2", prompt_of(48, 17), max_tokens=2))).cached_tokens == 0

    async def test_many_at_once_each_get_their_own_answer(self, engine: Engine, served: Served) -> None:
        common = prompt_of(40, 18)
        asked = [request(f"many-{i}", [*common, *prompt_of(1 + i % 7, i)], max_tokens=8 + i % 9, seed=i) for i in range(80)]
        turns = await asyncio.gather(*(run(engine, one) for one in asked))
        assert [len(turn.token_ids) for turn in turns] == [8 + i % 9 for i in range(80)]
        for turn in turns[::16]:
            assert close(turn.logprobs, await scored(engine, turn), served.tolerance)

    async def test_a_prompt_that_does_not_fit_is_refused_as_such(self, engine: Engine, served: Served) -> None:
        with pytest.raises(ContextOverflow):
            await run(engine, request("overflow", prompt_of(served.context + 1), max_tokens=4))

    async def test_an_id_outside_the_vocabulary_is_refused(self, engine: Engine, served: Served) -> None:
        with pytest.raises(EngineError):
            await run(engine, request("outside", [1, served.vocabulary + 7], max_tokens=4))

    async def test_a_request_id_in_flight_is_refused(self, engine: Engine, served: Served) -> None:
        stream = engine.generate(request("twice", prompt_of(6, 19), max_tokens=served.long))
        await anext(stream)
        with pytest.raises(EngineError):
            await run(engine, request("twice", prompt_of(6, 19), max_tokens=2))
        await stream.aclose()  # type: ignore[attr-defined]

    async def test_the_score_of_fewer_than_two_ids_is_empty(self, engine: Engine) -> None:
        assert await engine.score([5]) == []

    async def test_status_says_what_is_served(self, engine: Engine, served: Served) -> None:
        status = await engine.status()
        assert status.context_length == served.context
        assert not status.paused
        assert status.name == engine.name

    async def test_the_probe_grades_it_as_trainable(self, engine: Engine) -> None:
        report = await engine.probe()
        assert (report.grade, report.logprobs) == ("tokens", "processed")
