"""`python -m whippletree.engines.scripted_server`: the scripted engine as a process, over the embedded engine's HTTP.

Its faults are those of real servers: status 503 and 500, a connection cut in mid-stream, an error inside a reply of status 200,
missing columns, slowness. Prints one line when it is ready; SIGTERM and SIGINT end it with status 0.

Invariants (tests/engines/test_scripted_server.py):
- without faults it obeys the engine suite through the client of the embedded engine;
- each fault shows on the wire as its setting says, and in nothing else.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec
from aiohttp import web

from whippletree.engines.config import ScriptedConfig
from whippletree.engines.embedded import api, bodies
from whippletree.engines.process import read_command, report, serve
from whippletree.engines.scripted import ScriptedEngine
from whippletree.errors import EngineError, EngineUnavailable, RequestError
from whippletree.types import GenerateRequest, TokenChunk, WeightUpdate


class ScriptedServer:
    """A scripted engine behind HTTP."""

    def __init__(self, engine: ScriptedEngine, *, context: int, vocabulary: int, seed: int = 0) -> None:
        """`context` and `vocabulary` are the engine's."""
        self.engine = engine
        self._limits = api.Limits(vocabulary=vocabulary, context=context, eos_ids=frozenset(), seed=seed)
        self._context = context
        self._created = int(time.time())
        self._numbers = itertools.count(1)

    @classmethod
    def configured(cls, config: ScriptedConfig) -> ScriptedServer:
        """The server that a configuration describes. Raises ConfigurationError."""
        engine = ScriptedEngine.configured(config)
        return cls(engine, context=config.context, vocabulary=engine.vocabulary, seed=config.seed)

    def app(self) -> web.Application:
        """The routes of the embedded engine."""
        return bodies.routes(self)

    async def close(self) -> None:
        """Nothing to end but the engine."""
        await self.engine.close()

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        body = await bodies.read(request, api.CompletionBody)
        sequence = api.accept(body, body.request_id or f"request-{next(self._numbers)}", self._limits)
        asked = GenerateRequest(
            request_id=sequence.request_id,
            prompt_ids=body.prompt,
            sampling=sequence.sampling,
            stop_token_ids=sorted(sequence.stop_ids),
        )
        if sequence.score_prompt:
            return bodies.reply(await self._scores(asked))
        async with aclosing(self.engine.generate(asked)) as chunks:
            if body.stream:
                return await self._stream(request, body, asked, chunks)
            return bodies.reply(await self._whole(body, asked, chunks))

    async def _stream(
        self, request: web.Request, body: api.CompletionBody, asked: GenerateRequest, chunks: AsyncIterator[TokenChunk]
    ) -> web.StreamResponse:
        first = await anext(chunks)  # what fails before the first token has a status of its own
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        sampled, chunk = 0, first
        try:
            while True:
                sampled += len(chunk.token_ids)
                await response.write(bodies.event(self._reply(asked, _choice(body, chunk))))
                if chunk.finish_reason is not None:
                    break
                chunk = await anext(chunks)
        except EngineUnavailable:
            if request.transport is not None:
                request.transport.abort()
            return response
        except EngineError as error:
            await response.write(bodies.event(bodies.failure(str(error), 500)))
        else:
            if body.stream_options is not None and body.stream_options.include_usage:
                usage = _usage(asked, sampled, chunk.cached_tokens)
                await response.write(bodies.event(self._reply(asked, None, usage)))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _whole(
        self, body: api.CompletionBody, asked: GenerateRequest, chunks: AsyncIterator[TokenChunk]
    ) -> api.Completion:
        found = [chunk async for chunk in chunks]
        answer = msgspec.structs.replace(
            found[-1],
            token_ids=[token for chunk in found for token in chunk.token_ids],
            logprobs=[logprob for chunk in found for logprob in chunk.logprobs],
        )
        usage = _usage(asked, len(answer.token_ids), answer.cached_tokens)
        return self._reply(asked, _choice(body, answer), usage)

    async def _scores(self, asked: GenerateRequest) -> api.Completion:
        scores = await self.engine.score(asked.prompt_ids)
        scored = zip(asked.prompt_ids[1:], scores, strict=True)
        columns = [None, *({str(token): api.PromptLogprob(logprob=score)} for token, score in scored)]
        choice = api.Choice(finish_reason="length", policy_version=self.engine.policy_version, prompt_logprobs=columns)
        return self._reply(asked, choice, _usage(asked, 0, 0))

    def _reply(self, asked: GenerateRequest, choice: api.Choice | None, usage: api.Usage | None = None) -> api.Completion:
        choices = [] if choice is None else [choice]
        name = f"cmpl-{asked.request_id}"
        return api.Completion(id=name, created=self._created, model=self.engine.model, choices=choices, usage=usage)

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        entry = api.ModelEntry(id=self.engine.model, root="scripted", max_model_len=self._context, created=self._created)
        return bodies.reply(api.ModelEntries(data=[entry]))

    async def health(self, request: web.Request) -> web.Response:
        """GET /health."""
        return web.Response()

    async def status(self, request: web.Request) -> web.Response:
        """GET /status."""
        return bodies.reply(await self.engine.status())

    async def pause(self, request: web.Request) -> web.Response:
        """POST /pause."""
        await self.engine.pause()
        return await self.status(request)

    async def resume(self, request: web.Request) -> web.Response:
        """POST /resume."""
        await self.engine.resume()
        return await self.status(request)

    async def abort(self, request: web.Request) -> web.Response:
        """POST /abort: unknown ids are ignored."""
        await self.engine.abort((await bodies.read(request, api.Abort)).request_id)
        return web.Response()

    async def update_weights(self, request: web.Request) -> web.Response:
        """POST /update_weights: nothing is read from the directory; another one is another distribution."""
        update = await bodies.read(request, WeightUpdate)
        if not update.directory:
            raise RequestError("the directory is empty", "name one; nothing is read from it")
        await self.engine.update_weights(update)
        return await self.status(request)


def _choice(body: api.CompletionBody, chunk: TokenChunk) -> api.Choice:
    """A missing column (faults) is null."""
    columns = None
    if body.logprobs is not None and chunk.logprobs:
        names = [f"token_id:{token}" for token in chunk.token_ids]
        columns = api.Logprobs(tokens=names, token_logprobs=chunk.logprobs, text_offset=[0] * len(names))
    return api.Choice(
        logprobs=columns,
        finish_reason=chunk.finish_reason,
        token_ids=chunk.token_ids if body.return_token_ids and (chunk.token_ids or not chunk.logprobs) else None,
        policy_version=chunk.policy_version,
    )


def _usage(asked: GenerateRequest, sampled: int, cached: int) -> api.Usage:
    prompt = len(asked.prompt_ids)
    return api.Usage(
        prompt_tokens=prompt,
        completion_tokens=sampled,
        total_tokens=prompt + sampled,
        prompt_tokens_details=api.PromptTokensDetails(cached_tokens=cached),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the engine until it is told to end. Returns the exit status."""
    given = sys.argv[1:] if argv is None else argv
    command = read_command(ScriptedConfig, given, module="whippletree.engines.scripted_server")
    return report(lambda: run(command.config, command.ready_file, parent=command.parent))


def run(config: ScriptedConfig, ready_file: Path | None = None, *, parent: int = 0) -> None:
    """Serve until SIGTERM, SIGINT or the end of process `parent` (0: none). Raises ConfigurationError."""
    serve(lambda: ScriptedServer.configured(config), config, "scripted engine serves", ready_file, parent=parent)


if __name__ == "__main__":
    sys.exit(main())
