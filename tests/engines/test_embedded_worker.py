"""The engine thread gives every request exactly one end, whatever happens to it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
import torch
from engine_parts import Models, make_core, make_sequence
from suite import prompt_of

from whippletree.engines.embedded.core import EngineCore
from whippletree.engines.embedded.sequence import Sequence as EngineSequence
from whippletree.engines.embedded.weights import Weights
from whippletree.engines.embedded.worker import EngineWorker, Mailbox
from whippletree.errors import EngineError, RequestError
from whippletree.types import TokenChunk


@pytest.fixture
async def core(models: Callable[[str], Models]) -> EngineCore:
    return make_core(models("qwen3").old, slots=4)


@pytest.fixture
async def worker(core: EngineCore) -> AsyncIterator[EngineWorker]:
    worker = EngineWorker(core, threads=1, stream_interval=0.0)
    yield worker
    await worker.stop()


def break_weights(core: EngineCore) -> None:
    """Weights that no forward pass can use: the next step raises inside torch."""
    core.weights = replace(core.weights, norm=torch.ones(3))


async def letters(mailbox: Mailbox) -> list[TokenChunk | EngineError]:
    """Everything up to the end of a request."""
    got: list[TokenChunk | EngineError] = []
    while True:
        letter = await asyncio.wait_for(mailbox.get(), 60)
        got.append(letter)
        if isinstance(letter, EngineError) or letter.finish_reason is not None:
            return got


async def test_chunks_arrive_and_end(worker: EngineWorker) -> None:
    mailbox = await worker.submit(make_sequence("r", prompt_of(5), max_tokens=7))
    chunks = await letters(mailbox)
    assert sum(len(chunk.token_ids) for chunk in chunks if isinstance(chunk, TokenChunk)) == 7
    assert mailbox.empty()


async def test_a_request_that_is_not_streamed_gets_one_chunk(worker: EngineWorker) -> None:
    sequence = make_sequence("r", prompt_of(5), max_tokens=7)
    sequence.stream = False
    assert len(await letters(await worker.submit(sequence))) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_the_death_of_the_thread_fails_every_request_with_the_reason(worker: EngineWorker, core: EngineCore) -> None:
    await worker.pause()
    early = [await worker.submit(make_sequence(f"r{i}", prompt_of(5, i), max_tokens=50)) for i in range(6)]
    await worker.call(lambda: break_weights(core))
    await worker.resume()
    for mailbox in early:
        end = (await letters(mailbox))[-1]
        assert isinstance(end, EngineError)
        assert "died" in str(end)
    assert worker.failure is not None
    with pytest.raises(EngineError, match="died"):
        await worker.submit(make_sequence("late", prompt_of(5), max_tokens=2))
    with pytest.raises(EngineError, match="died"):
        await worker.pause()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_orders_that_the_dying_thread_left_behind_fail(worker: EngineWorker) -> None:
    def crash() -> None:
        raise ValueError("broken on purpose")

    results = await asyncio.wait_for(
        asyncio.gather(worker.call(crash), worker.pause(), worker.resume(), return_exceptions=True), 60
    )
    assert all(isinstance(result, EngineError) for result in results)
    assert "broken on purpose" in str(results[0])


async def test_a_failed_load_changes_nothing(worker: EngineWorker) -> None:
    def load() -> Weights:
        raise EngineError("no such weights", "publish them")

    with pytest.raises(EngineError, match="no such weights"):
        await worker.swap(load)
    assert worker.policy_version == 0
    assert worker.failure is None
    assert len(await letters(await worker.submit(make_sequence("r", prompt_of(5), max_tokens=3)))) >= 1


async def test_while_paused_nothing_is_lost_and_abort_works(
    worker: EngineWorker, core: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, steps, go = core.step, itertools.count(1), threading.Event()

    def halting() -> list[EngineSequence]:
        if next(steps) == 9:  # in the middle of both, until the pause has been asked for
            assert go.wait(60)
        return step()

    monkeypatch.setattr(core, "step", halting)
    await worker.pause()
    kept = await worker.submit(make_sequence("kept", prompt_of(5, 1), max_tokens=30))
    ended = await worker.submit(make_sequence("ended", prompt_of(5, 2), max_tokens=100))
    await worker.resume()
    pausing = asyncio.create_task(worker.pause())
    await asyncio.sleep(0)
    go.set()
    await pausing
    worker.abort("ended")
    last = (await letters(ended))[-1]
    assert isinstance(last, TokenChunk)
    assert last.finish_reason == "abort"
    await worker.resume()
    chunks = await letters(kept)
    assert sum(len(chunk.token_ids) for chunk in chunks if isinstance(chunk, TokenChunk)) == 30


async def test_an_id_in_flight_is_refused_and_free_again_afterwards(worker: EngineWorker) -> None:
    await worker.pause()
    first = await worker.submit(make_sequence("r", prompt_of(5), max_tokens=3))
    with pytest.raises(RequestError, match="already in flight"):
        await worker.submit(make_sequence("r", prompt_of(5), max_tokens=3))
    await worker.resume()
    await letters(first)
    await letters(await worker.submit(make_sequence("r", prompt_of(5), max_tokens=3)))


async def test_stopping_ends_what_is_in_flight_with_abort(core: EngineCore) -> None:
    worker = EngineWorker(core, threads=1, stream_interval=0.0)
    await worker.pause()
    mailboxes = [await worker.submit(make_sequence(f"r{i}", prompt_of(5, i), max_tokens=50)) for i in range(6)]
    await worker.stop()
    for mailbox in mailboxes:
        last = (await letters(mailbox))[-1]
        assert isinstance(last, TokenChunk)
        assert last.finish_reason == "abort"
