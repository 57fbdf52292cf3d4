"""Settings of the store ([store] in a run file).

Invariants (tests/store/test_store_postgres.py): no password is part of a configuration, and none that was written into one is
repeated in the error.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec

from whippletree.configuration import Config


class StoreConfig(Config):
    """Settings of the store."""

    url: str = ""
    """Where the record lies: "" for SQLite in the run directory (one machine), or the address of a PostgreSQL database for
    several nodes, postgresql://user@host:5432/database, with libpq's options after a "?". No password may be part of it.
    Payloads lie in the run directory in both cases, which several nodes then share."""

    password_file: str = ""
    """PostgreSQL: a file whose first line is the password; "" leaves it to libpq (~/.pgpass, passfile, peer, certificates)."""

    connect_seconds: Annotated[float, msgspec.Meta(ge=1)] = 10.0
    """PostgreSQL: how long one try to connect may take."""

    read_connections: Annotated[int, msgspec.Meta(ge=1)] = 4
    """At most this many connections of one process read at once; further reads wait. One more connection writes."""

    durability: Literal["process", "power"] = "process"
    """What an acknowledged call survives: "process" the kill of any process (what was written is flushed to disk every
    `flush_seconds`, so a power cut can lose the newest calls), "power" a power cut too (two flushes before each
    acknowledgement). States, rewards and steps always survive a power cut: controller and learner write with "power". With
    PostgreSQL everything is flushed before it is acknowledged."""

    flush_seconds: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """With durability = "process": at most this long until what was acknowledged is on disk."""

    segment_bytes: Annotated[int, msgspec.Meta(ge=1)] = 64 * 1024 * 1024
    """A payload segment file is closed and the next one begun once it has this many bytes."""

    busy_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """How long one group of writes waits for another process's transaction, and whoever reads or writes for a PostgreSQL server
    that went away, before it fails with StoreError."""

    gather_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Extra time to wait for further writes before a group is committed; 0 commits what is queued at once."""

    group_limit: Annotated[int, msgspec.Meta(ge=1)] = 512
    """At most this many writes share one transaction."""

    retain: Literal["all", "trained"] = "all"
    """Payloads (token ids, logprobs, texts) to keep: "all", or "trained": those of finished rollouts go once their step is in
    a checkpoint. Records (states, rewards, lengths, causes) always stay."""

    retain_steps: Annotated[int, msgspec.Meta(ge=0)] = 20
    """With retain = "trained": payloads of this many newest committed steps are kept, to look at."""

    def __post_init__(self) -> None:
        if self.url:
            _check_address(self.url)


def _check_address(url: str) -> None:
    """Raises ValueError, which never repeats the address: it may hold a password."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        raise ValueError("url is no address (write it like postgresql://user@host:5432/database)") from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise ValueError("url is no address of PostgreSQL (write it like postgresql://user@host:5432/database)")
    options = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    if password is not None or options & {"password", "sslpassword"}:
        raise ValueError("url has a password in it, which would be copied into the run's record (put it into password_file)")
