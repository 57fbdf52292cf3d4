"""A hosted chat API as an engine: any endpoint that speaks OpenAI's chat-completions, for evaluation.

It is graded by measurement like every engine: only one that gives prompt ids, token ids and logprobs is "tokens", most are
"text".

Invariants (tests/engines/test_hosted.py):
- the key is read from its file or variable and is in no configuration, error or log;
- what only a token-level engine can do is refused, with what to do instead.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from whippletree.engines.chat import ChatClient
from whippletree.engines.chat_wire import Wording
from whippletree.engines.config import HostedConfig
from whippletree.engines.probe_chat import probe_chat
from whippletree.engines.transport import Timeouts, Transport
from whippletree.errors import ConfigurationError, EngineError
from whippletree.types import EngineReport, EngineStatus, GenerateRequest, TokenChunk, WeightUpdate


class HostedEngine(ChatClient):
    """Client of one hosted API. It satisfies protocols.ChatEngine, and Engine as far as a chat API can."""

    name = "hosted"
    chat_only = True
    chat_route = "/chat/completions"

    def __init__(self, config: HostedConfig, *, name: str = "") -> None:
        """Reads the key. Raises ConfigurationError when it cannot be read or the URL is none."""
        if not config.model:
            raise ConfigurationError("engine.model is not set", "name the model as the API does")
        self.name = name or self.name
        self.model = config.model
        self.wording = Wording(
            limit=config.limit_field,
            reasoning=config.reasoning_field,
            logprobs=config.logprobs,
            extra=config.extra,
            omit=tuple(config.omit) + (() if config.logprobs else ("logprobs",)),
        )
        key = read_key(config.api_key_file, config.api_key_env)
        limits = Timeouts(connect=20.0, read=config.silence)
        self.http = Transport(self.name, config.base_url, api_key=key, timeouts=limits)
        self._context = config.context

    async def status(self) -> EngineStatus:
        """What the settings say: APIs tell nothing. A key that is refused shows with the first request."""
        return EngineStatus(name=self.name, model=self.model, policy_version=0, context_length=self._context)

    async def probe(self) -> EngineReport:
        """Grade it by three short requests."""
        return await probe_chat(self, self._context)

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Refused: a chat API takes messages, not ids."""
        raise self._refused("sample from token ids")

    async def abort(self, request_id: str) -> None:
        """Nothing to do: closing the iterator of `chat` ends a request."""

    async def pause(self) -> None:
        """Refused."""
        raise self._refused("be paused")

    async def resume(self) -> None:
        """Refused."""
        raise self._refused("be resumed")

    async def update_weights(self, update: WeightUpdate) -> None:
        """Refused."""
        raise self._refused(f"load policy version {update.policy_version}")

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Refused."""
        raise self._refused("score token ids")

    async def close(self) -> None:
        """Close the connections."""
        await self.http.close()

    def _refused(self, what: str) -> EngineError:
        return EngineError(f"{self.name} at {self.http.base_url} is a chat API and cannot {what}", "train with another engine")


def read_key(file: str, variable: str = "") -> str:
    """The key in a file's first line or an environment variable, "" where neither is named.

    Raises ConfigurationError that names the file or variable, never its content.
    """
    if file:
        try:
            key = Path(file).read_text(encoding="utf-8").split("\n", 1)[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"engine.api_key_file {file} cannot be read", "write the key there, as its first line"
            ) from error
    elif variable:
        key = os.environ.get(variable, "").strip()
    else:
        return ""
    if not key or not key.isascii() or not key.isprintable():
        where = file or f"variable {variable}"
        raise ConfigurationError(f"there is no key in {where}", "put the API's key there")
    return key
