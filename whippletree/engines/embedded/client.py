"""Client of the embedded engine: a completions server that also can be paused, aborted and given new weights.

Invariants (tests/engines/test_embedded_process.py):
- it satisfies the shared engine suite against a real engine process.
"""

from __future__ import annotations

from whippletree.engines.completions import CompletionsEngine
from whippletree.engines.embedded.api import Abort
from whippletree.types import EngineStatus, Struct, WeightUpdate


class EmbeddedEngine(CompletionsEngine):
    """Engine over the HTTP of `python -m whippletree.engines.embedded`. The server labels every chunk with its version."""

    name = "embedded"

    async def abort(self, request_id: str) -> None:
        """End a request; its last chunk, with finish_reason "abort", still comes. Unknown ids are ignored."""
        await self.http.call("POST", "/abort", Struct, Abort(request_id=request_id))

    async def pause(self) -> None:
        """Return once the engine computes nothing. Requests stay open and go on after `resume`."""
        await self.http.call("POST", "/pause", EngineStatus)

    async def resume(self) -> None:
        """Go on computing."""
        await self.http.call("POST", "/resume", EngineStatus)

    async def update_weights(self, update: WeightUpdate) -> None:
        """Swap the weights. Raises EngineError, and the engine keeps its weights, when they are not exactly this model's."""
        status = await self.http.call("POST", "/update_weights", EngineStatus, update)
        self.policy_version = status.policy_version

    async def status(self) -> EngineStatus:
        """What the engine says of itself. Raises EngineUnavailable when it is gone or its engine thread died."""
        return await self.http.call("GET", "/status", EngineStatus)
