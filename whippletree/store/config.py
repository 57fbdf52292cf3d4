"""Settings of the store ([store] in a run file)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from whippletree.configuration import Config


class StoreConfig(Config):
    """Settings of the store."""

    durability: Literal["process", "power"] = "process"
    """What an acknowledged call survives: "process" the kill of any process (what was written is flushed to disk every
    `flush_seconds`, so a power cut can lose the newest calls), "power" a power cut too (two flushes before each
    acknowledgement). States, rewards and steps always survive a power cut: controller and learner write with "power"."""

    flush_seconds: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """With durability = "process": at most this long until what was acknowledged is on disk."""

    segment_bytes: Annotated[int, msgspec.Meta(ge=1)] = 64 * 1024 * 1024
    """A payload segment file is closed and the next one begun once it has this many bytes."""

    busy_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """How long one group of writes waits for another process's transaction before it fails with StoreError."""

    gather_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Extra time to wait for further writes before a group is committed; 0 commits what is queued at once."""

    group_limit: Annotated[int, msgspec.Meta(ge=1)] = 512
    """At most this many writes share one transaction."""

    retain: Literal["all", "trained"] = "all"
    """Payloads (token ids, logprobs, texts) to keep: "all", or "trained": those of finished rollouts go once their step is in
    a checkpoint. Records (states, rewards, lengths, causes) always stay."""

    retain_steps: Annotated[int, msgspec.Meta(ge=0)] = 20
    """With retain = "trained": payloads of this many newest committed steps are kept, to look at."""
