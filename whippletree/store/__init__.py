"""The durable record: metadata in SQLite or PostgreSQL, payloads in segments.

`open_store` opens (and, the first time, creates) the store of one run directory; any number of processes may do so at once.
"""

from __future__ import annotations

from pathlib import Path

from whippletree.errors import StoreError
from whippletree.protocols import PayloadStore
from whippletree.store import sqlite
from whippletree.store.config import StoreConfig
from whippletree.store.place import decide_place, find_place
from whippletree.store.record import RecordStore
from whippletree.store.segments import SegmentPayloadStore
from whippletree.store.sqlite import SqliteStore

__all__ = ["RecordStore", "SegmentPayloadStore", "SqliteStore", "StoreConfig", "open_store"]


def open_store(
    directory: Path,
    *,
    payloads: PayloadStore | None = None,
    config: StoreConfig | None = None,
    instance: str = "",
) -> RecordStore:
    """Open the store of `directory`. Its record is `store.sqlite` there, or a schema of the PostgreSQL database that
    `config.url` names; once decided, the directory knows. Token columns are in `payloads/`, or in the PayloadStore given.

    `instance` names this process in the names of its segment files ("gateway-0"); it need not be unique.
    Raises StoreError when the directory or the database cannot be used or was written by a newer version.
    """
    config = config or StoreConfig()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create {directory}: {error.strerror}", "check the run directory") from error
    place = find_place(directory, config)
    on_postgres = place is not None or bool(config.url)
    if payloads is None:
        payloads = SegmentPayloadStore(
            directory / "payloads",
            instance=instance,
            segment_bytes=config.segment_bytes,
            sync=on_postgres or config.durability == "power",
        )
    if not on_postgres:
        return SqliteStore(directory, payloads, config)
    from whippletree.store import postgres  # its driver is an extra

    if place is None:
        if (directory / sqlite.FILE).exists():
            cause = f"the record of {directory} is in {sqlite.FILE}, not in {config.url}"
            raise StoreError(cause, "leave out store.url to go on with this run, or begin a new one")
        seconds = config.connect_seconds
        place = decide_place(
            directory, config, lambda new: postgres.create_schema(new, seconds), lambda new: postgres.drop_schema(new, seconds)
        )
    return postgres.PostgresStore(place, payloads, config)
