"""Settings of the gateway.

Invariants (tests/gateway/test_gateway_config.py): every default is valid; a limit that is not positive is refused.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from whippletree.configuration import Config

Seconds = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class GatewayConfig(Config):
    """How harnesses reach the model, and how long things may take."""

    host: str = "127.0.0.1"
    """Address to listen on. Loopback by default: whoever holds an attempt's key can spend its samples."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """Port to listen on; 0 lets the system choose one (the ready file says which)."""
    model: str = "policy"
    """The model name that replies and the model list carry. Requests are served whatever name they ask for."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that a request may be addressed to, besides loopback names and `host` itself."""
    max_in_flight: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Calls sampled at the same time, in all; more of them wait in order of arrival. 0 means no limit."""
    max_sessions: Count = 4096
    """Attempts whose calls are kept in memory; the longest idle are dropped and read again from the store when needed."""
    max_body_bytes: Count = 33_554_432
    """Largest request body, in bytes."""
    keepalive: Seconds = 10.0
    """Seconds between the comments that keep a silent stream open."""
    engine_wait_limit: Seconds = 600.0
    """Seconds that a call waits for an engine that does not answer, before the harness is told (503)."""
    engine_silence_limit: Seconds = 900.0
    """Seconds without a token after which an engine counts as not answering. Longer than any pause for new weights."""
    drain_limit: Seconds = 600.0
    """Seconds that a hold waits for the calls in flight to end."""
    hold_limit: Seconds = 3600.0
    """Seconds after which a hold that nobody released ends by itself."""
    seal_limit: Seconds = 10.0
    """Seconds that a seal waits for the calls in flight of its attempt, before it cancels them."""
