"""Settings of the store ([store] in a run file)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from whippletree.configuration import Config


class StoreConfig(Config):
    """Settings of the store."""

    segment_bytes: Annotated[int, msgspec.Meta(ge=1)] = 64 * 1024 * 1024
    """A payload segment file is closed and the next one begun once it has this many bytes."""

    busy_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """How long one group of writes waits for another process's transaction before it fails with StoreError."""

    gather_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Extra time to wait for further writes before a group is committed; 0 commits what is queued at once."""

    group_limit: Annotated[int, msgspec.Meta(ge=1)] = 512
    """At most this many writes share one transaction."""
