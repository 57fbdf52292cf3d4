"""The durable record: metadata in SQLite, payloads in segments.

`open_store` opens (and, the first time, creates) the store of one run directory; any number of processes may do so at once.
"""

from __future__ import annotations

from pathlib import Path

from whippletree.protocols import PayloadStore
from whippletree.store.config import StoreConfig
from whippletree.store.segments import SegmentPayloadStore
from whippletree.store.sqlite import SqliteStore

__all__ = ["SegmentPayloadStore", "SqliteStore", "StoreConfig", "open_store"]


def open_store(
    directory: Path,
    *,
    payloads: PayloadStore | None = None,
    config: StoreConfig | None = None,
    instance: str = "",
) -> SqliteStore:
    """Open the store in `directory`: `store.sqlite`, and `payloads/` for token columns unless another PayloadStore is given.

    `instance` names this process in the names of its segment files ("gateway-0"); it need not be unique.
    Raises StoreError when the directory cannot be used or was written by a newer version.
    """
    config = config or StoreConfig()
    if payloads is None:
        payloads = SegmentPayloadStore(
            directory / "payloads", instance=instance, segment_bytes=config.segment_bytes, sync=config.durability == "power"
        )
    return SqliteStore(directory, payloads, config)
