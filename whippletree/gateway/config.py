"""Settings of the gateway.

Invariants (tests/gateway/test_gateway_config.py): every default is valid; a limit that is not positive is refused.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from whippletree.configuration import Config, Count, Seconds

LONGEST_LEASE = 2_592_000.0  # seconds


class GatewayConfig(Config):
    """How harnesses reach the model, and how long things may take."""

    host: str = "127.0.0.1"
    """Address to listen on. Loopback by default: whoever holds an attempt's key can spend its samples."""
    allow_remote: bool = False
    """Whether `host` may be an address that other machines reach. Keys are asked for in any case."""
    open_proxy: bool = False
    """Serve model calls below /proxy/rollout/ID/attempt/N/ without a key, and accept the events of that attempt: rollout and
    attempt are taken from the path. For agents of your own, in a network that nobody else reaches."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """Port to listen on; 0 lets the system choose one (the ready file says which)."""
    workers: Count = 1
    """Processes that serve; each rollout is owned by one of them. One is enough until it is busy all the time."""
    worker_ports: tuple[int, ...] = ()
    """With several workers: the port that each has for itself, besides the shared one; empty lets the system choose. A harness
    that is pointed at its rollout's owner is served without a detour."""
    model: str = "policy"
    """The model name that replies and the model list carry. Requests are served whatever name they ask for."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that a request may be addressed to, besides loopback names and `host` itself."""
    max_in_flight: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Calls sampled at the same time, in all; more of them wait in order of arrival. 0 means no limit."""
    max_sessions: Count = 4096
    """Attempts whose calls are kept in memory; the longest idle are dropped and read again from the store when needed."""
    session_idle_limit: Seconds = 600.0
    """Seconds without a call after which an attempt is dropped from memory; it is read again from the store when needed."""
    cache_bytes: Count = 536_870_912
    """Bytes of memory for what speeds up the next request of each conversation: ids, text and messages of its last call."""
    max_body_bytes: Count = 33_554_432
    """Largest request body, in bytes."""
    keepalive: Seconds = 10.0
    """Seconds between the comments that keep a silent stream open."""
    whole_keepalive: Seconds = 60.0
    """Seconds between the spaces that keep the connection of a whole (not streamed) reply open. A request that fails before the
    first gets a plain error; after it, its connection is dropped."""
    router: str = ""
    """How a call finds its replica: "" keeps a rollout on one replica and takes the least busy for a new one; "module:name"
    makes another (protocols.Router)."""
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
    linger_limit: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Seconds that a call goes on whose client went away. One that comes back within them, as the restored copy of a sandbox
    does, finds the same call; 0 ends the call at once, and who comes back goes on from what it had sampled."""
    lease_seconds: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_LEASE)] = 3600.0
    """Seconds without a heartbeat, model call, event or update after which an attempt that was begun through the rollout API is
    lost (cause "host_lost"), unless its begin says otherwise. 0: never."""
    stall_seconds: Seconds = 5.0
    """Seconds that the event loop of a worker may stand still before the log says so, with the code that it is in."""
    session_ttl: Seconds = 86400.0
    """Seconds without a call after which a captured session ends as failed, with cause "deadline"."""
