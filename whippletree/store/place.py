"""Where a run's record lies, written down in its store directory by whoever opens it first.

So every later command finds the record by the directory alone, two runs never share tables, and a record that went missing is
told instead of begun anew. Without the file the record is SQLite, beside it.

Invariants (tests/store/test_store_place.py):
- of several processes that open a new store at once, one decides the place and all use it; the others leave nothing behind;
- a configuration that names another place than the one written down is refused, and so is one that comes after SQLite;
- there is no password in the file.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from whippletree.errors import StoreError, words_of
from whippletree.files import write_json
from whippletree.store.config import StoreConfig
from whippletree.types import Struct

FILE = "postgresql.json"


class Place(Struct):
    """A schema of a PostgreSQL database.

    Example: Place(url="postgresql://trainer@db:5432/runs", schema="whippletree_demo_5f0c2a9e", password_file="/run/secrets/db")
    """

    url: str
    schema: str
    password_file: str = ""


def find_place(directory: Path, config: StoreConfig) -> Place | None:
    """The place that is written down; None for SQLite, or where nothing is decided yet. Raises StoreError."""
    path = directory / FILE
    try:
        place = msgspec.json.decode(path.read_bytes(), type=Place)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(
            f"cannot read {path}: {words_of(error)}", "restore it from a copy: it says where the record lies"
        ) from error
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", place.schema):
        raise StoreError(f"{path}: {place.schema!r} is no schema of a store", "restore it from a copy")
    if config.url and config.url != place.url:
        raise StoreError(
            f"the record of {directory} is in {place.url}, not in {config.url}",
            f"set store.url to where it is, or edit {path} if the database has moved",
        )
    return msgspec.structs.replace(place, password_file=config.password_file or place.password_file)


def decide_place(directory: Path, config: StoreConfig, create: Callable[[Place], None], drop: Callable[[Place], None]) -> Place:
    """Make a place for a new record and write it down, unless another process was faster. Raises StoreError."""
    name = re.sub(r"[^a-z0-9]+", "_", directory.resolve().parent.name.lower()).strip("_")[:30]
    schema = "_".join(part for part in ("whippletree", name, secrets.token_hex(4)) if part)
    password_file = config.password_file and str(Path(config.password_file).resolve())
    mine = Place(url=config.url, schema=schema, password_file=password_file)
    create(mine)
    draft = directory / f".{schema}.json"
    try:
        write_json(draft, mine)
        os.link(draft, directory / FILE)
    except FileExistsError:
        drop(mine)
    except OSError as error:
        drop(mine)
        raise StoreError(f"cannot write {directory / FILE}: {error.strerror}", "check the run directory") from error
    finally:
        draft.unlink(missing_ok=True)
    place = find_place(directory, config)
    if place is None:
        raise StoreError(f"{directory / FILE} was removed while it was used", "open the store again")
    return place
