"""The HTTP face of the embedded engine.

Invariants (tests/engines/test_embedded_process.py):
- the event loop never computes: all torch work is on the engine thread;
- a client that goes away aborts its request;
- every refusal is a JSON error with a status that says whose fault it is; a dead engine thread makes /health 500.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import torch
from aiohttp import web

from whippletree.engines.embedded import api, bodies
from whippletree.engines.embedded.architecture import Architecture, eos_token_ids, read_architecture
from whippletree.engines.embedded.config import EmbeddedConfig
from whippletree.engines.embedded.core import EngineCore
from whippletree.engines.embedded.sequence import Sequence
from whippletree.engines.embedded.weights import load_weights
from whippletree.engines.embedded.worker import EngineWorker, Mailbox
from whippletree.engines.experts import npy_text
from whippletree.errors import ConfigurationError, EngineError, RequestError
from whippletree.types import EngineStatus, TokenChunk, WeightUpdate


class EmbeddedServer:
    """One engine behind HTTP. Create it inside a running event loop; `close` ends its thread."""

    def __init__(self, config: EmbeddedConfig) -> None:
        """Loads the model. Raises ConfigurationError or EngineError when it cannot be served."""
        _check(config)
        self._config = config
        self._directory = Path(config.model)
        self._dtype = torch.float32 if config.dtype == "float32" else torch.bfloat16
        self._architecture = read_architecture(self._directory)
        config = msgspec.structs.replace(config, context=min(config.context, self._architecture.max_positions))
        self._config = config
        self._limits = api.Limits(
            vocabulary=self._architecture.vocabulary,
            context=config.context,
            eos_ids=eos_token_ids(self._directory),
            seed=config.seed,
        )
        self._worker = self._start(self._architecture)
        self._created = int(time.time())
        self._numbers = itertools.count(1)

    def _start(self, architecture: Architecture) -> EngineWorker:
        torch.set_num_threads(self._config.threads)
        core = EngineCore(
            architecture,
            load_weights(self._directory, architecture, self._dtype, self._config.policy_version),
            slots=self._config.slots,
            context=self._config.context,
            prefill_tokens=self._config.prefill_tokens,
            dtype=self._dtype,
        )
        return EngineWorker(core, threads=self._config.threads, stream_interval=self._config.stream_interval)

    def app(self) -> web.Application:
        """The routes. Closing the application ends the engine thread."""
        return bodies.routes(self)

    async def close(self) -> None:
        """Abort what is in flight and end the engine thread."""
        await self._worker.stop()

    # --- sampling ---

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        body = await bodies.read(request, api.CompletionBody)
        request_id = body.request_id or f"request-{next(self._numbers)}"
        sequence = api.accept(body, request_id, self._limits)
        try:
            mailbox = await self._worker.submit(sequence)
            if body.stream:
                return await self._stream(request, body, sequence, mailbox)
            return await self._whole(body, sequence, mailbox)
        finally:
            # Also when the handler is cancelled because the client went away; of no effect on a request that has ended.
            self._worker.abandon(sequence)

    async def _whole(self, body: api.CompletionBody, sequence: Sequence, mailbox: Mailbox) -> web.Response:
        chunks = [chunk async for chunk in _chunks(mailbox)]
        answer = msgspec.structs.replace(
            chunks[-1],
            token_ids=[token for chunk in chunks for token in chunk.token_ids],
            logprobs=[logprob for chunk in chunks for logprob in chunk.logprobs],
        )
        choice = msgspec.structs.replace(_choice(body, sequence, answer), versions=list(sequence.spans))
        if body.return_token_ids:
            choice = msgspec.structs.replace(choice, prompt_token_ids=body.prompt)
        if sequence.score_prompt:
            choice = msgspec.structs.replace(choice, prompt_logprobs=_prompt_logprobs(sequence))
        return bodies.reply(self._reply(sequence, [choice], usage=_usage(sequence, len(answer.token_ids))))

    async def _stream(
        self, request: web.Request, body: api.CompletionBody, sequence: Sequence, mailbox: Mailbox
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        prompt: list[int] | None = body.prompt if body.return_token_ids else None
        sampled = 0
        try:
            async for chunk in _chunks(mailbox):
                choice = _choice(body, sequence, chunk)
                if prompt is not None:
                    choice, prompt = msgspec.structs.replace(choice, prompt_token_ids=prompt), None
                sampled += len(chunk.token_ids)
                await response.write(bodies.event(self._reply(sequence, [choice])))
            if body.stream_options is not None and body.stream_options.include_usage:
                await response.write(bodies.event(self._reply(sequence, [], usage=_usage(sequence, sampled))))
        except EngineError as error:
            # The status line is out already: the error is an event of the stream.
            await response.write(bodies.event(bodies.failure(str(error), 500)))
        await response.write(b"data: [DONE]\n\n")
        return response

    def _reply(self, sequence: Sequence, choices: list[api.Choice], usage: api.Usage | None = None) -> api.Completion:
        return api.Completion(
            id=f"cmpl-{sequence.request_id}", created=int(time.time()), model=self._config.name, choices=choices, usage=usage
        )

    # --- control ---

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        entry = api.ModelEntry(
            id=self._config.name, root=str(self._directory), max_model_len=self._config.context, created=self._created
        )
        return bodies.reply(api.ModelEntries(data=[entry]))

    async def health(self, request: web.Request) -> web.Response:
        """GET /health: 200, or 500 with the reason once the engine thread has died."""
        failure = self._worker.failure
        return web.Response() if failure is None else bodies.reply(bodies.failure(str(failure), 500), status=500)

    async def status(self, request: web.Request) -> web.Response:
        """GET /status."""
        if self._worker.failure is not None:
            raise self._worker.failure
        return bodies.reply(
            EngineStatus(
                name="embedded",
                model=self._config.name,
                policy_version=self._worker.policy_version,
                context_length=self._config.context,
                paused=self._worker.paused,
                running=self._worker.running,
                waiting=self._worker.waiting,
            )
        )

    async def pause(self, request: web.Request) -> web.Response:
        """POST /pause: answered once nothing is being computed."""
        await self._worker.pause()
        return await self.status(request)

    async def resume(self, request: web.Request) -> web.Response:
        """POST /resume."""
        await self._worker.resume()
        return await self.status(request)

    async def abort(self, request: web.Request) -> web.Response:
        """POST /abort: unknown ids are ignored."""
        self._worker.abort((await bodies.read(request, api.Abort)).request_id)
        return web.Response()

    async def update_weights(self, request: web.Request) -> web.Response:
        """POST /update_weights: answered once the new weights are served; when they cannot be (400), the old ones stay."""
        update = await bodies.read(request, WeightUpdate)
        directory = Path(update.directory)
        try:
            await self._worker.swap(lambda: load_weights(directory, self._architecture, self._dtype, update.policy_version))
        except EngineError as error:
            if self._worker.failure is not None:
                raise
            raise RequestError(error.cause, error.next_step) from error
        return await self.status(request)


def _check(config: EmbeddedConfig) -> None:
    if not config.model:
        raise ConfigurationError("the embedded engine has no model", "give a model directory (--model DIR)")
    for name in ("threads", "slots", "context", "prefill_tokens"):
        least = 2 if name == "context" else 1
        if getattr(config, name) < least:
            raise ConfigurationError(f"{name} = {getattr(config, name)} is too small", f"use at least {least}")


async def _chunks(mailbox: Mailbox) -> AsyncIterator[TokenChunk]:
    """Chunks of one request up to the one with the finish reason. Raises the EngineError that ended it."""
    while True:
        letter = await mailbox.get()
        if isinstance(letter, EngineError):
            raise letter
        yield letter
        if letter.finish_reason is not None:
            return


def _choice(body: api.CompletionBody, sequence: Sequence, chunk: TokenChunk) -> api.Choice:
    columns = None
    if body.logprobs is not None:
        names = [f"token_id:{token}" for token in chunk.token_ids]
        columns = api.Logprobs(tokens=names, token_logprobs=chunk.logprobs, text_offset=[0] * len(names))
    return api.Choice(
        logprobs=columns,
        finish_reason=chunk.finish_reason,
        stop_reason=sequence.stop_token if chunk.finish_reason == "stop" else None,
        token_ids=chunk.token_ids if body.return_token_ids else None,
        policy_version=chunk.policy_version,
        routed_experts=None if chunk.experts is None else npy_text(chunk.experts),
    )


def _prompt_logprobs(sequence: Sequence) -> list[dict[str, api.PromptLogprob] | None]:
    tokens = sequence.tokens[1 : sequence.prompt_length]
    scored = zip(tokens, sequence.prompt_logprobs, strict=True)
    return [None, *({str(token): api.PromptLogprob(logprob=logprob)} for token, logprob in scored)]


def _usage(sequence: Sequence, sampled: int) -> api.Usage:
    return api.Usage(
        prompt_tokens=sequence.prompt_length,
        completion_tokens=sampled,
        total_tokens=sequence.prompt_length + sampled,
        prompt_tokens_details=api.PromptTokensDetails(cached_tokens=sequence.cached),
    )
